package transport

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"starfish/internal/wire"
	"starfish/pserver/pb"
)

// split cuts data into buffers of n bytes, as it comes from the network.
func split(data []byte, n int) mem.BufferSlice {
	var s mem.BufferSlice
	for len(data) > n {
		s, data = append(s, mem.SliceBuffer(data[:n])), data[n:]
	}
	return append(s, mem.SliceBuffer(data))
}

func TestDecodeHoweverItIsCut(t *testing.T) {
	t.Parallel()
	var f incoming
	for _, size := range []int{1, 2, 127, 128, 20_000} {
		body := bytes.Repeat([]byte{0x5a}, size)
		frame, err := proto.Marshal(&pb.Frame{Body: body})
		require.NoError(t, err)
		for n := 1; n < 12; n++ {
			require.NoError(t, f.decode(split(frame, n)))
			require.True(t, bytes.Equal(body, f.body), "%d bytes by %d", size, n)
		}
	}
}

func TestReceiveBufferIsReusedButNotKeptHuge(t *testing.T) {
	t.Parallel()
	var f incoming
	f.reserve(1000)
	first := &f.buf[0]
	f.reserve(900)
	require.Same(t, first, &f.buf[0])
	f.reserve(wire.MaxMessage)
	require.Len(t, f.body, wire.MaxMessage)
	f.reserve(1000)
	require.Less(t, cap(f.buf), wire.PartSize)
}

// What decodes is what protobuf's own code makes of it.
func FuzzFrame(f *testing.F) {
	f.Add([]byte{0x0a, 3, 'a', 'b', 'c'}, 2)
	f.Add([]byte{}, 1)
	f.Add([]byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x07}, 9)
	f.Fuzz(func(t *testing.T, data []byte, n int) {
		var in incoming
		if in.decode(split(data, min(max(n, 1), 100))) != nil {
			return
		}
		var want pb.Frame
		require.NoError(t, proto.Unmarshal(data, &want))
		require.True(t, bytes.Equal(want.Body, in.body))
	})
}
