package main

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/stretchr/testify/require"
)

// made calls `starfish generate ctr` and gives what it wrote and said.
func made(t *testing.T, file string, args ...string) (content, said string) {
	t.Helper()
	c := newCall(t, append([]string{"generate", "ctr", "-o", file}, args...)...).succeed()
	require.Empty(t, c.stderr.String())
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(b), c.stdout.String()
}

// Ranges are parts of one log; the command writes what the generator of the
// published figures does, and says what can be learnt.
func TestGenerateCTR(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	all, said := made(t, filepath.Join(dir, "all"), "--rows", "20000")
	sum := sha256.Sum256([]byte(all))
	require.Equal(t, "331a9f20a97fee7774a858b3c1bbd68a824b63ddbb162e5d0c51f2133c3e43ab", hex.EncodeToString(sum[:]))
	require.Equal(t, "records   20,000, from 0 on, with 4,934 clicks (24.7 %) and 39.0 keys each\n"+
		"log-loss  0.41224 at best; 0.45844 of the true model without its interactions; 0.55868 of the click rate alone\n", said)
	one, _ := made(t, filepath.Join(dir, "one"), "--rows", "9000")
	two, _ := made(t, filepath.Join(dir, "two"), "--rows", "11000", "--first", "9000")
	require.Len(t, one+two, len(all))
	require.Equal(t, sum, sha256.Sum256([]byte(one+two)), "ranges do not fit together")

	other, _ := made(t, filepath.Join(dir, "other"), "--rows", "9000", "--seed", "2")
	require.NotEqual(t, one, other)
	small, _ := made(t, filepath.Join(dir, "small"), "--rows", "10", "--bits", "4", "--format", "vw")
	for _, word := range strings.Fields(strings.ReplaceAll(small, " |", "")) {
		require.LessOrEqual(t, len(word), 2, "a key is below 16")
	}
}

// What ends in .gz is compressed, - is stdout, and what is no file stays.
func TestGenerateTo(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "log.tsv.gz")
	_, _ = made(t, file, "--rows", "500", "--format", "tsv")
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	var unpacked strings.Builder
	_, err = z.WriteTo(&unpacked)
	require.NoError(t, err)

	c := newCall(t, "generate", "ctr", "--rows", "500", "--format", "tsv", "-o", "-").succeed()
	require.Equal(t, unpacked.String(), c.stdout.String())
	require.Equal(t, 500, strings.Count(c.stdout.String(), "\n"))
	require.Equal(t, 500*39, strings.Count(c.stdout.String(), "\t"))
	require.Contains(t, c.stderr.String(), "log-loss")

	link := filepath.Join(t.TempDir(), "null")
	require.NoError(t, os.Symlink(os.DevNull, link))
	newCall(t, "generate", "ctr", "--rows", "10", "-o", link).succeed()
	info, err := os.Stat(link)
	require.NoError(t, err)
	require.False(t, info.Mode().IsRegular(), "the device became a file")
	said := newCall(t, "generate", "ctr", "--rows", "0", "-o", link).succeed().stdout.String()
	require.Equal(t, "no records made\n", said)
}
