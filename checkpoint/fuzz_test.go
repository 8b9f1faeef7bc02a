package checkpoint

import (
	"bytes"
	"encoding/gob"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestKnownDigest: the digest is MD5 as RFC 1321 has it, in small hex.
func TestKnownDigest(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":    "d41d8cd98f00b204e9800998ecf8427e",
		"abc": "900150983cd24fb0d6963f7d28e17f72",
		"12345678901234567890123456789012345678901234567890123456789012345678901234567890": "57edf4a22be3c955ac49da2e2107b67a",
	} {
		var out bytes.Buffer
		w := newWriter(&out)
		for _, c := range []byte(text) {
			_, err := w.Write([]byte{c})
			require.NoError(t, err)
		}
		require.NoError(t, w.Close())
		require.Equal(t, want, w.hex())
		require.Equal(t, text, out.String())
		require.EqualValues(t, len(text), w.size)
		r := newReader(&out, t.Context().Err)
		got, err := io.ReadAll(r)
		require.NoError(t, err)
		require.NoError(t, r.Close())
		require.Equal(t, text, string(got))
		require.Equal(t, want, r.hex())
		require.EqualValues(t, len(text), r.size)
	}
}

func sample(t testing.TB) []byte {
	t.Helper()
	var file bytes.Buffer
	require.NoError(t, encode(&file, Header{Version: FormatVersion, JobUUID: "j", Shard: 1, Generation: 2}, func(emit Emit) error {
		return errors.Join(emit("meta", []byte("hello")), emit("rows", bytes.Repeat([]byte{7}, 3000)))
	}))
	return file.Bytes()
}

// golden is a file of format version 1. It must load for ever.
const golden = "507f0301010648656164657201ff80000105010756657273696f6e01040001074a6f6255554944010c0001055368617264010400010a47656e65726174696f6e010400010743726561746564010400000039ff800102012430623866396134362d336637652d346430632d396131312d3561346636663166336237370106011801f830f986cd745a80000045ff8103010105626c6f636b01ff82000105010753656374696f6e010c00010444617461010a000103456e640102000106426c6f636b7301040001054279746573010400000010ff8201046d657461010568656c6c6f000aff820105656d707479000eff820104726f777301030102030009ff8203010106011000"

func TestGolden(t *testing.T) {
	t.Parallel()
	data, err := hex.DecodeString(golden)
	require.NoError(t, err)
	var h Header
	var got []byte
	require.NoError(t, decode(bytes.NewReader(data), func(x Header) error { h = x; return nil },
		func(section string, data []byte) error {
			got = append(append(append(got, section...), '='), data...)
			return nil
		}))
	require.Equal(t, Header{Version: 1, JobUUID: "0b8f9a46-3f7e-4d0c-9a11-5a4f6f1f3b77", Shard: 3, Generation: 12, Created: 1764500000000000000}, h)
	require.Equal(t, "meta=helloempty=rows=\x01\x02\x03", string(got))
}

// Every cut and every single flipped byte is either refused or harmless, and a
// cut is always refused.
func TestCutsAndFlips(t *testing.T) {
	t.Parallel()
	file := sample(t)
	accept := func(Header) error { return nil }
	ignore := func(string, []byte) error { return nil }
	require.NoError(t, decode(bytes.NewReader(file), accept, ignore))
	for n := range file {
		require.ErrorIs(t, decode(bytes.NewReader(file[:n]), accept, ignore), ErrFormat, "cut at %d", n)
	}
	for i := 0; i < len(file); i++ {
		flipped := bytes.Clone(file)
		flipped[i] ^= 0xff
		if err := decode(bytes.NewReader(flipped), accept, ignore); err != nil {
			require.ErrorIs(t, err, ErrFormat, "flip at %d", i)
		}
	}
	require.ErrorIs(t, decode(bytes.NewReader(append(bytes.Clone(file), file...)), accept, ignore), ErrFormat, "twice")
}

// A length field is not believed: a message that claims a gigabyte costs nothing.
func TestClaimedLengths(t *testing.T) {
	t.Parallel()
	for name, head := range map[string][]byte{
		"gigabyte":   {0xfc, 0x3f, 0xff, 0xff, 0xff},
		"exabyte":    {0xf8, 0x0f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
		"nine bytes": {0xf7, 1, 1, 1, 1, 1, 1, 1, 1, 1},
		"2 MiB":      {0xfd, 0x20, 0x00, 0x00},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := decode(bytes.NewReader(head), func(Header) error { return nil }, nil)
		runtime.ReadMemStats(&after)
		require.ErrorIs(t, err, ErrFormat, name)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<20), name)
	}
	var long bytes.Buffer
	enc := gob.NewEncoder(&long)
	require.NoError(t, enc.Encode(Header{Version: FormatVersion}))
	require.NoError(t, enc.Encode(block{Section: "s", Data: make([]byte, BlockSize+1)}))
	require.ErrorIs(t, decode(&long, func(Header) error { return nil }, nil), ErrFormat, "a block above the limit")
}

func FuzzDecode(f *testing.F) {
	file := sample(f)
	f.Add(file)
	f.Add(file[:len(file)/2])
	f.Add([]byte{0xfc, 0x3f, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		total := 0
		err := decode(bytes.NewReader(data), func(Header) error { return nil }, func(section string, d []byte) error {
			if section == "" || len(d) > BlockSize {
				t.Fatalf("section %q with %d bytes", section, len(d))
			}
			total += len(d)
			return nil
		})
		if err != nil && !errors.Is(err, ErrFormat) {
			t.Fatalf("an error of another kind: %v", err)
		}
		if total > len(data) {
			t.Fatalf("%d bytes out of %d", total, len(data))
		}
	})
}

func FuzzName(f *testing.F) {
	f.Add("0002-0000000001-0b8f9a46-3f7e-4d0c-9a11-5a4f6f1f3b77.ckpt")
	f.Add("0002-0000000001-0b8f9a46-3f7e-4d0c-9a11-5a4f6f1f3b77.ckpt.tmp")
	f.Add("JOB")
	f.Fuzz(func(t *testing.T, name string) {
		shard, generation, ok := parseName(name)
		if !ok {
			return
		}
		if shard < 0 || generation < 0 || strings.ContainsAny(name, "/\\") {
			t.Fatalf("%q is shard %d generation %d", name, shard, generation)
		}
		if !strings.HasPrefix(name, fmt.Sprintf("%04d-%010d-", shard, generation)) {
			t.Fatalf("%q is not canonical", name)
		}
	})
}
