# bash completion for gpulaunch: printed by 'gpulaunch completion bash'

# Sets what completes a value: of COMMAND/OPTION, of COMMAND/N for the Nth word after the command, or
# of COMMAND/+ for all others. Fails for an option that needs no value.
_gpulaunch_value() {
    words='' names='' shell='' is_list=''
    case $1 in
@values@
        *) return 1 ;;
    esac
}

_gpulaunch_options() {
    names='' shell='' is_list=''
    case $1 in
@options@
    esac
}

# Completes the command line that begins at the Nth word as if it stood alone.
_gpulaunch_handed_over() {
    if declare -F _command_offset >/dev/null; then
        _command_offset "$1"
    elif (($1 == COMP_CWORD)); then # without the package bash-completion
        mapfile -t COMPREPLY < <(compgen -c -- "${COMP_WORDS[COMP_CWORD]}")
    else
        compopt -o default
    fi
}

_gpulaunch() {
    # bash also splits words at = : and the like, as in --topology=dgx1-v100: join them again.
    local typed=() at=() line=${COMP_LINE:0:COMP_POINT} gap piece i IFS=$' \t\n'
    for ((i = 0; i <= COMP_CWORD; i++)); do
        piece=${COMP_WORDS[i]}
        gap=${line%%[![:space:]]*}
        line=${line#"$gap"}
        ((i < COMP_CWORD)) || piece=$line
        line=${line#"$piece"}
        if ((i == 0)) || [[ $gap || ! $piece ]]; then
            typed+=("$piece") at+=("$i")
        else
            typed[-1]+=$piece
        fi
    done
    local current=${typed[-1]} last=$piece

    # Which command is it, which of its words, and does an option wait for its value?
    local command='' waiting='' words names shell is_list
    local -i n=1
    for ((i = 1; i < ${#typed[@]} - 1; i++)); do
        piece=${typed[i]}
        if [[ $waiting ]]; then
            waiting=''
        elif [[ $piece == -- ]]; then
            _gpulaunch_handed_over $((at[i] + 1))
            return
        elif [[ $piece == -* ]]; then
            ! _gpulaunch_value "$command/$piece" || waiting=$piece
        elif [[ $command ]]; then
            case "$command $piece" in
                @nested@) command+=" $piece" n=1 ;;
                *) n+=1 ;;
            esac
        else
            case ${piece##*/} in
                run) ;;
                @engines@)
                    _gpulaunch_handed_over "${at[i]}"
                    return
                    ;;
                *) command=$piece ;;
            esac
        fi
    done

    local head=''
    if [[ $waiting ]]; then
        _gpulaunch_value "$command/$waiting"
    elif [[ $current == --*=* ]]; then
        head=${current%%=*}=
        _gpulaunch_value "$command/${head%=}" || return 0
    elif [[ $current == -* ]]; then
        _gpulaunch_options "$command"
    else
        _gpulaunch_value "$command/$n" || _gpulaunch_value "$command/+" || return 0
    fi
    [[ $is_list && $current == *,* ]] && head=${current%,*},

    local text=${current#"$head"} quote='' name found
    case $text in
        [\"\']*) quote=${text:0:1} text=${text:1} ;;
        *) text=${text//\\/} ;;
    esac
    mapfile -t found < <(
        printf '%s\n' $words
        [[ $names ]] && "${1/#\~\//$HOME/}" completion --names "$names" 2>/dev/null
    )
    for name in "${found[@]%%$'\t'*}"; do
        [[ $name && $name == "$text"* ]] || continue
        case $quote in
            \') name=${name//\'/\'\\\'\'} ;;
            \") name=$(sed 's/[\\"$`]/\\&/g' <<<"$name") ;;
            *) printf -v name %q "$name" ;;
        esac
        COMPREPLY+=("$head$name")
    done
    case $shell in
        files) compopt -o default ;; # if none of the names above fits
        directories) compopt -o dirnames ;;
        commands) mapfile -t COMPREPLY < <(compgen -P "$head" -c -- "$text") ;;
        users) mapfile -t COMPREPLY < <(compgen -P "$head" -u -- "$text") ;;
    esac
    # Of the current word, readline replaces only what stands after the last = : or the like.
    [[ $last == *[!=:@]* ]] || last=''
    head=${current%"$last"}
    [[ $COMP_WORDBREAKS == *@* ]] && head=${head%@} # the @ it replaces, too
    COMPREPLY=("${COMPREPLY[@]#"$head"}")
}

complete -F _gpulaunch gpulaunch
