// Package raced tells tests whether they run under the race detector, where a
// sync.Pool drops a part of what it is given and nothing that pools memory can
// be held to a number of allocations.
package raced
