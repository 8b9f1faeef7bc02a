// Command campaign kills, stops and ends the processes of whole jobs, at random
// moments and at named points of the code, and demands that every record counts
// exactly once all the same.
//
//	go run ./campaign -seeds 1-200 -budget 45m
//
// One seed is one run: a Plan (plan.go) says which job on which processes, and
// which faults (kinds.go) in which order; the same seed always gives the same plan.
// The programs are the real ones, built with the tag `failpoints`, and started by
// `starfish run`, so that etcd runs in a process of its own that can be killed
// too, and everything resumes from the directory. Pservers and trainers that join
// in mid-job (moving.go) are processes of their own on the run's etcd. They are
// started again when they die, as the run's are; who is asked to leave is not.
//
// A run is paced: as long as its plan has faults left, every take lasts so long
// that chunks are left to be trained, on a fast machine and on a slow one. A
// fault counts as one that struck if it did so in the window of its kind:
// between first take and last complete, as the queue says just before and just
// after it, or while the job is created, or while it drains.
//
// While a run lasts every change in etcd is held against the invariants of
// docs/design.md (package history), and how long the shards lie unevenly after a pserver
// has come or gone is measured (load.go); at its end the sums, the model, the checkpoints
// and what is left behind are checked (check.go). A run that is not right keeps
// its directory, with the logs, and prints the command that repeats it.
package main
