#compdef gpulaunch
# zsh completion for gpulaunch: printed by 'gpulaunch completion zsh'

# Completes a value: NAMES SHELL IS_LIST [WORD...], where - stands for none.
_gpulaunch_value() {
  local names=$1 shell=$2 is_list=$3 line
  local -i failed=1
  shift 3
  local -a found=(${${@//\\/\\\\}//:/\\:})
  [[ $is_list == - ]] || compset -P '*,'
  if [[ $names != - ]]; then
    for line in "${(@f)$(_call_program $names $program completion --names $names 2>/dev/null)}"; do
      [[ -z $line ]] || found+=("${${${line%%$'\t'*}//\\/\\\\}//:/\\:}:${${(M)line%%$'\t'*}#?}")
    done
  fi
  (( $#found )) && _describe -t values "${names#-}" found && failed=0
  case $shell in
    files) _files && failed=0 ;;
    directories) _files -/ && failed=0 ;;
    commands) _command_names -e && failed=0 ;;
    users) _users && failed=0 ;;
  esac
  return failed
}

# Sets the arguments of a command, as _arguments takes them.
_gpulaunch_arguments() {
  case $1 in
@arguments@
    *) return 1 ;;
  esac
}

_gpulaunch() {
  local curcontext=$curcontext state state_descr line command program=$words[1]
  local -A opt_args
  local -a arguments choices
  local -i divider=${words[(ie)--]}
  if (( divider < CURRENT )); then # the job's own command line
    shift divider words
    (( CURRENT -= divider ))
    _normal
    return
  fi
  _gpulaunch_arguments ''
  _arguments -s -S -C : "${arguments[@]}" '(-): :->word' '(-)*:: :->rest' && return
  if [[ $state == word ]]; then
    choices=(
@commands@
    )
    _describe -t commands command choices
    return
  fi
  command=$words[1]
  case ${command:t} in
    @engines@) _normal; return ;;
    run) words[1]=$program; _gpulaunch; return ;;
  esac
  if (( CURRENT > 2 )) && _gpulaunch_arguments "$words[1] $words[2]"; then
    command="$words[1] $words[2]"
    shift words
    (( CURRENT -= 1 ))
  fi
  curcontext="${curcontext%:*:*}:gpulaunch-${command// /-}:"
  _gpulaunch_arguments "$command" && _arguments -s -S : "${arguments[@]}"
}

if [[ $funcstack[1] == _gpulaunch ]]; then
  _gpulaunch "$@"
else
  compdef _gpulaunch gpulaunch
fi
