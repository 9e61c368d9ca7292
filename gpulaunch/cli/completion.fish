# fish completion for gpulaunch: printed by 'gpulaunch completion fish'

# Prints COMMAND/N, where the cursor is at the Nth word after the command; or --/N, where the command
# line from the Nth token on is that of another program.
function __gpulaunch_place
    set -l valued @valued@
    set -l tokens (commandline -opc)
    set -e tokens[1]
    set -l command ''
    set -l waiting no
    set -l n 1
    set -l at 1
    for token in $tokens
        set at (math $at + 1)
        if test $waiting = yes
            set waiting no
        else if test "$token" = --
            echo "--/"(math $at + 1)
            return
        else if string match -q -- '-*' $token
            contains -- "$command/$token" $valued; and set waiting yes
        else if contains -- "$command $token" @nested@
            set command "$command $token"
            set n 1
        else if test -n "$command"
            set n (math $n + 1)
        else if contains -- (string split / -- $token)[-1] @engines@
            echo "--/$at"
            return
        else if test "$token" != run
            set command $token
        end
    end
    echo "$command/$n"
end

# Whether the cursor is in COMMAND, and at a word from FIRST to LAST after it.
function __gpulaunch_at -a command first last
    set -l place (string split -r -m 1 / -- (__gpulaunch_place))
    test "$place[1]" = "$command"
    and test -z "$first" -o "$place[2]" -ge "0$first" -a "$place[2]" -le "0$last"
end

function __gpulaunch_handed_over
    set -l begin (string split / -- (__gpulaunch_place))[2]
    set -l tokens (commandline -opc) ''
    set -e tokens[-1]
    set -e tokens[1..(math $begin - 1)]
    complete -C (string join ' ' -- (string escape -- $tokens) (commandline -ct))
end

function __gpulaunch_names -a kind
    set -l program (commandline -opc)[1]
    string replace -r '^~/' "$HOME/" -- $program | read -l program
    $program completion --names $kind 2>/dev/null
end

# Prints each of these as the next one of a list with commas.
function __gpulaunch_list
    set -l before (commandline -ct | string replace -r -- '^--[^=]*=' '' | string match -r -- '^.*,')
    printf '%s\n' "$before"$argv
end

complete -c gpulaunch -f
complete -c gpulaunch -n '__gpulaunch_at --' -a '(__gpulaunch_handed_over)'
@arguments@
