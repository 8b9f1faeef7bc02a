// Package cli is what the commands share: flags that can also be given in the
// environment, loggers, signals, exit codes and the connection to etcd.
//
// Every flag --some-name of a command is also read from STARFISH_SOME_NAME; a
// flag that is given wins. An error of a command is one line on stderr, and the
// process ends with the code that job.ExitCode reads from the error; a misspelt
// flag or verb, or a value that cannot be, is a UsageError (code 2).
//
// The first SIGTERM, SIGINT or SIGHUP cancels the command's context, whereupon
// it ends in order; the second ends the process at once, after what was given to
// OnAbort.
package cli
