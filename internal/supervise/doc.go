// Package supervise keeps child processes running on this machine.
//
// A Supervisor starts one child for each Process and starts it again when it
// dies, until the work has ended (whatever the child's code then is: processes
// of a failed job end with 1, and that is no news), the caller's context ends,
// or a child ends in a way that starting it again cannot mend. What to do after
// an exit is decided by plain code (policy.go): at once after a kill or a late
// end, with a back-off from 1 s to 30 s after a failure or an orderly end within
// 10 s of the start, never after "superseded", and the whole run ends after a
// usage error or when a child keeps failing in the same way.
//
// The children die with the supervisor, however it dies: each is started with
// Pdeathsig = SIGKILL. The kernel sends that signal when the *thread* that
// started the child ends, so all children are started by one goroutine that is
// locked to its thread and lives as long as Run. A child also has a process
// group of its own, so that a terminal's Ctrl-C reaches only the supervisor,
// which passes it on as SIGTERM.
//
// Output of a child goes to its log file, without passing through the
// supervisor; after a failure the decisive last line is read back from there.
//
// A Killer is the saboteur of `--chaos`: it kills random children at random
// times of a seeded sequence while a window is open, and counts the kills that
// struck inside it.
//
// Locks: Supervisor.mu guards the table of children; nothing is called while it
// is held but the kernel.
package supervise
