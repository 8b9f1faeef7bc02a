//go:build !race

package raced

// Enabled: this build runs under the race detector.
const Enabled = false
