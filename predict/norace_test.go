//go:build !race

package predict

const raced = false
