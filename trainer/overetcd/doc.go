// Package overetcd has tests only: whole jobs, in one process and real time, over
// real etcds that are short of space, stopped or lose members. What must hold
// is what holds everywhere: each record counts once, and whoever was not
// away for longer than a lease keeps it.
package overetcd
