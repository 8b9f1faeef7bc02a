package checkpoint

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// A file is called <shard>-<generation>-<uuid>.ckpt, all numbers padded so that
// a listing sorts. While it is written ".tmp" follows, and ".bad" follows once
// a loader has passed over it.
const (
	suffix    = ".ckpt"
	tmpSuffix = ".tmp"
	badSuffix = ".bad"
	// markerName is the file that says which job a directory belongs to.
	markerName = "JOB"
)

func fileName(shard int, generation int64, id uuid.UUID) string {
	return fmt.Sprintf("%04d-%010d-%s%s", shard, generation, id, suffix)
}

// parseName reads a name made by fileName, with or without ".tmp" behind it.
// Every other name, ".bad" included, is not ours to touch.
func parseName(name string) (shard int, generation int64, ok bool) {
	base, found := strings.CutSuffix(strings.TrimSuffix(name, tmpSuffix), suffix)
	if !found {
		return 0, 0, false
	}
	parts := strings.SplitN(base, "-", 3)
	if len(parts) != 3 {
		return 0, 0, false
	}
	s, err1 := strconv.ParseUint(parts[0], 10, 31)
	g, err2 := strconv.ParseUint(parts[1], 10, 63)
	id, err3 := uuid.Parse(parts[2])
	if err1 != nil || err2 != nil || err3 != nil {
		return 0, 0, false
	}
	shard, generation = int(s), int64(g)
	if fileName(shard, generation, id) != base+suffix {
		return 0, 0, false
	}
	return shard, generation, true
}

// checkPath refuses a listed path that does not name a file of the shard inside
// the directory, so that no record can make a loader read or rename another's.
func checkPath(m Meta) error {
	shard, generation, ok := parseName(m.Path)
	if !ok || strings.HasSuffix(m.Path, tmpSuffix) || filepath.Base(m.Path) != m.Path {
		return fmt.Errorf("%q is not the name of a checkpoint", m.Path)
	}
	if shard != m.Shard || generation != m.Generation {
		return fmt.Errorf("%q is the name of another shard or generation", m.Path)
	}
	return nil
}

// keyPrefix is where the records of a shard lie below the job's prefix.
func keyPrefix(shard int) string { return fmt.Sprintf("checkpoints/%04d/", shard) }

func key(shard int, seq int64) string { return fmt.Sprintf("%s%010d", keyPrefix(shard), seq) }

func seqOf(shard int, k string) (int64, error) {
	seq, err := strconv.ParseInt(strings.TrimPrefix(k, keyPrefix(shard)), 10, 64)
	if err != nil || key(shard, seq) != k {
		return 0, fmt.Errorf("checkpoint: %q is not a checkpoint's key", k)
	}
	return seq, nil
}
