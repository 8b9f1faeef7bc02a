package job_test

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/stretchr/testify/require"

	"starfish/internal/permute"
	"starfish/job"
)

// page reads a page of the documentation.
func page(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../docs/" + name)
	require.NoError(t, err)
	return string(text)
}

// rows are the cells of the tables of a page, by their first cell.
func rows(text string) map[string][]string {
	all := make(map[string][]string)
	for line := range strings.Lines(text) {
		line = strings.ReplaceAll(strings.TrimSpace(line), `\|`, "¦")
		if cells := strings.Split(line, "|"); len(cells) > 3 {
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			all[cells[1]] = cells[2 : len(cells)-1]
		}
	}
	return all
}

// fields lists the paths of a spec's leaves, as its types declare them.
func fields(of reflect.Type, prefix string) []string {
	var paths []string
	for i := range of.NumField() {
		tag, ok := of.Field(i).Tag.Lookup("spec")
		if !ok {
			continue
		}
		path, _, _ := strings.Cut(prefix+tag, ",")
		switch kind := of.Field(i).Type; {
		case kind.Kind() == reflect.Struct:
			paths = append(paths, fields(kind, path+".")...)
			continue
		case kind.Kind() == reflect.Slice && kind.Elem().Kind() == reflect.Struct:
			paths = append(paths, fields(kind.Elem(), path+"[].")...)
		}
		paths = append(paths, path)
	}
	return paths
}

// at is the value of a path in a decoded spec, as the page writes it.
func at(spec map[string]any, path string) (string, bool) {
	var v any = spec
	for name := range strings.SplitSeq(path, ".") {
		section, ok := v.(map[string]any)
		if !ok {
			return "", false
		}
		if v, ok = section[name]; !ok {
			return "", false
		}
	}
	return fmt.Sprint(v), true
}

// TestSpecPage: docs/spec.md has every field with its default, and none that
// does not exist.
func TestSpecPage(t *testing.T) {
	t.Parallel()
	text, _, ok := strings.Cut(page(t, "spec.md"), "## Refused in this version")
	require.True(t, ok)
	table := rows(text)
	decode := func(text string) map[string]any {
		spec, err := job.ParseSpec([]byte(text), "", nil)
		require.NoError(t, err)
		var m map[string]any
		decoder := json.NewDecoder(strings.NewReader(string(spec.JSON())))
		decoder.UseNumber()
		require.NoError(t, decoder.Decode(&m))
		return m
	}
	defaults, types := decode(least), map[string]map[string]any{}
	for _, kind := range []string{"sgd", "momentum", "nesterov", "adam", "ftrl"} {
		types[kind] = decode(least + "optimizer: {type: " + kind + "}\n")
	}
	required := map[string]bool{"job": true, "data.train": true, "model.type": true, "features[].name": true}
	known := fields(reflect.TypeFor[job.Spec](), "")
	require.Greater(t, len(known), 25)
	for _, path := range known {
		cells, ok := table["`"+path+"`"]
		require.True(t, ok, "docs/spec.md lacks the field %s", path)
		require.Len(t, cells, 3, path)
		value, ok := at(defaults, path)
		switch {
		case required[path]:
			require.Equal(t, "required", cells[1], path)
		case !ok:
			require.True(t, strings.HasPrefix(cells[1], "none"), "%s has no default, not %q", path, cells[1])
		default:
			require.True(t, cells[1] == "`"+value+"`" || strings.HasPrefix(cells[1], "`"+value+"` ("),
				"the default of %s is %s, not %q", path, value, cells[1])
		}
		for kind, spec := range types {
			if other, has := at(spec, path); has && other != value && path != "optimizer.type" {
				require.Contains(t, cells[1], "`"+kind+"`: `"+other+"`", path)
			}
		}
	}
	for name := range table {
		if path := strings.Trim(name, "`"); path != name && strings.Contains(path, ".") {
			require.Contains(t, known, strings.Split(path, "`")[0])
		}
	}
}

// TestSpecPageRefusals: everything that the page calls refused is refused by
// name.
func TestSpecPageRefusals(t *testing.T) {
	t.Parallel()
	_, text, ok := strings.Cut(page(t, "spec.md"), "## Refused in this version")
	require.True(t, ok)
	table := rows(text)
	refused := func(set string) {
		_, err := job.ParseSpec([]byte(least), "", []string{set}, job.Models("count"))
		require.ErrorContains(t, err, "not implemented in this version", set)
	}
	for _, path := range []string{"data.format", "model.type"} {
		values := table["`"+path+"`"]
		require.NotEmpty(t, values, path)
		for value := range strings.SplitSeq(values[0], ", ") {
			refused(path + "=" + value)
		}
	}
	refused("train.window=2")
	refused("data.train=s3://bucket/x")
	columns := strings.Replace(least, "train: [d]", "train: [d], format: csv, label: y", 1)
	for field, name := range map[string]string{"type: vector": "type", "type: list, table: t": "table", "type: list, dim: 4": "dim"} {
		_, err := job.ParseSpec([]byte(columns), "", []string{"features=[{name: f, " + field + "}]"})
		require.ErrorContains(t, err, "not implemented in this version", field)
		require.Contains(t, text, "`features[]."+name+"`")
	}
	names := regexp.MustCompile("`([a-z0-9_.]+)`").FindAllStringSubmatch(table["fields"][0], -1)
	require.Len(t, names, 5)
	for _, name := range names {
		refused(name[1] + "=1")
	}
}

// TestFormatsPage: the worked numbers of docs/formats.md are those of the code,
// and they are pinned: if this test fails the code is wrong, or the page was
// changed.
func TestFormatsPage(t *testing.T) {
	t.Parallel()
	text := page(t, "formats.md")
	for key, want := range map[uint64][2]int{0: {0, 0}, 1: {1, 2}, 2: {3, 6}, 123: {3, 5}, 1<<20 - 1: {3, 6}, 1<<64 - 1: {2, 4}} {
		shards := [2]int{job.ShardOf(key, 4), job.ShardOf(key, 7)}
		require.Equal(t, want, shards)
		require.Contains(t, text, fmt.Sprintf("| %d | `%016x` | %d | %d |", key, job.Mix(key), shards[0], shards[1]))
	}
	for name, want := range map[string][3]int{"bias": {1, 2, 2}, "total": {2, 3, 3}, "weights": {0, 1, 1}} {
		shards := [3]int{job.BlockShard(name, 0, 4), job.BlockShard(name, 1, 4), job.BlockShard(name, 5, 4)}
		require.Equal(t, want, shards)
		require.Contains(t, text, fmt.Sprintf("| `%s` | `%016x` | %d | %d | %d |", name, xxhash.Sum64String(name), shards[0], shards[1], shards[2]))
	}
	for name, p := range map[string]permute.P{
		"P(36; 1, 0): the chunks of `examples/adult` in pass 0":     permute.New(36, 1, 0),
		"P(36; 1, 1): in pass 1":                                    permute.New(36, 1, 1),
		"P(8; 1, 2, 0): eight records of chunk 0 in pass 2, seed 1": permute.New(8, 1, 2, 0),
		"P(16384; 1, 0, 17): a full window of chunk 17 in pass 0":   permute.New(16384, 1, 0, 17),
	} {
		var first []string
		for i := range int64(8) {
			first = append(first, fmt.Sprint(p.At(i)))
		}
		require.Contains(t, text, "| "+name+" | "+strings.Join(first, " ")+" |")
	}
}
