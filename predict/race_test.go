//go:build race

package predict

// raced: a sync.Pool drops a part of what it is given, so as to show races.
const raced = true
