package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWriteWhole: what is exported is there whole or not at all, also when
// several write it at once or one fails on the way; and nothing else is left.
func TestWriteWhole(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "model")
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			err := writeWhole(file, func(f *os.File) error {
				for range 1000 {
					if _, err := fmt.Fprintln(f, i); err != nil {
						return err
					}
					if i%4 == 3 {
						return errors.New("the disk is full")
					}
				}
				return nil
			})
			if (err != nil) != (i%4 == 3) {
				panic(err)
			}
		})
	}
	all.Wait()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	first, _, _ := strings.Cut(string(text), "\n")
	require.Equal(t, strings.Repeat(first+"\n", 1000), string(text))
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1)
}
