package checkpoint

import (
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

var errDisk = errors.New("input/output error")

func never() error { return nil }

// long is more than all pieces that may be under way, and not a whole number
// of them.
func long() []byte {
	data := make([]byte, (2*buffers+1)*bufferSize+12345)
	for i := range data {
		data[i] = byte(i >> 3 * 7)
	}
	return data
}

func sumOf(data []byte) string {
	sum := md5.Sum(data)
	return hex.EncodeToString(sum[:])
}

func TestStreams(t *testing.T) {
	t.Parallel()
	data := long()
	for _, step := range []int{1 << 10, 77_777, bufferSize, 3 * bufferSize} {
		var file bytes.Buffer
		w := newWriter(&file)
		for rest := data; len(rest) > 0; {
			n, err := w.Write(rest[:min(step, len(rest))])
			require.NoError(t, err)
			rest = rest[n:]
		}
		require.NoError(t, w.Close())
		require.True(t, bytes.Equal(data, file.Bytes()))
		require.Equal(t, sumOf(data), w.hex())
		require.EqualValues(t, len(data), w.size)
		require.Equal(t, buffers, w.made, "the pieces are used again")

		r, got := newReader(&file, never), make([]byte, len(data))
		_, err := io.ReadFull(r, got)
		require.NoError(t, err)
		require.NoError(t, r.Close())
		require.True(t, bytes.Equal(data, got))
		require.Equal(t, sumOf(data), r.hex())
	}
}

// failing fails after so many writes.
type failing int

func (f *failing) Write(p []byte) (int, error) {
	if *f--; *f < 0 {
		return 0, errDisk
	}
	return len(p), nil
}

func TestWriterTellsOfTheDisk(t *testing.T) {
	t.Parallel()
	for after := range 2*buffers + 2 {
		disk := failing(after)
		w := newWriter(&disk)
		var err error
		for range 100 {
			if _, err = w.Write(make([]byte, bufferSize)); err != nil {
				break
			}
		}
		require.ErrorIs(t, err, io.ErrClosedPipe, "it does not go on for ever")
		require.ErrorIs(t, w.Close(), errDisk)
	}
}

func TestReaderTellsOfTheDisk(t *testing.T) {
	t.Parallel()
	data := long()
	broken := func() *reader {
		return newReader(io.MultiReader(bytes.NewReader(data[:3*bufferSize+5]), iotest.ErrReader(errDisk)), never)
	}
	r := broken()
	got, err := io.ReadAll(r)
	require.ErrorIs(t, err, errDisk)
	require.True(t, bytes.Equal(data[:3*bufferSize+5], got))
	require.ErrorIs(t, r.Close(), errDisk)
	require.ErrorIs(t, broken().Close(), errDisk, "though nobody has read so far")
}

// Who has seen enough still gets the digest of the whole, unless he stops.
func TestReaderReadsOn(t *testing.T) {
	t.Parallel()
	data := long()
	r := newReader(bytes.NewReader(data), never)
	_, err := io.ReadFull(r, make([]byte, 10))
	require.NoError(t, err)
	require.NoError(t, r.Close())
	require.Equal(t, sumOf(data), r.hex())

	stop := errors.New("stop")
	calls := 0
	r = newReader(bytes.NewReader(data), func() error {
		if calls++; calls > 2 {
			return stop
		}
		return nil
	})
	got, err := io.ReadAll(r)
	require.ErrorIs(t, err, stop)
	require.Len(t, got, 2*bufferSize)
	require.ErrorIs(t, r.Close(), stop)
}

// The digest of a file on a real disk is what md5sum prints.
func TestDigestIsThatOfMD5Sum(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath("md5sum")
	if err != nil {
		t.Skip("there is no md5sum here")
	}
	dir, data := t.TempDir(), long()
	f, err := Save(t.Context(), OS, dir, Header{JobUUID: uuid.NewString()}, func(emit Emit) error { return emit("all", data) })
	require.NoError(t, err)
	out, err := exec.CommandContext(t.Context(), program, filepath.Join(dir, f.Path)).Output()
	require.NoError(t, err)
	require.Equal(t, f.MD5, strings.Fields(string(out))[0])
}
