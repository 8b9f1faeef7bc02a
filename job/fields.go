package job

import (
	"fmt"
	"math"
	"reflect"
	"sort"
	"strconv"
	"strings"
	"time"
)

// field is one leaf of a spec: the Go value behind a path like train.batch.
type field struct {
	path      string
	value     reflect.Value
	omitempty bool
}

// section is a struct of a spec with its fields by name.
type section struct {
	names  []string // in their order
	fields map[string]field
}

var (
	durationType = reflect.TypeFor[time.Duration]()
	bytesType    = reflect.TypeFor[Bytes]()
)

// sectionOf lists the fields of the struct v, which lies at path.
func sectionOf(v reflect.Value, path string) section {
	s := section{fields: make(map[string]field)}
	for i := range v.NumField() {
		tag, ok := v.Type().Field(i).Tag.Lookup("spec")
		if !ok {
			continue
		}
		name, option, _ := strings.Cut(tag, ",")
		s.names = append(s.names, name)
		s.fields[name] = field{path: join(path, name), value: v.Field(i), omitempty: option == "omitempty"}
	}
	return s
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// leaves visits all leaves of a spec in their order.
func leaves(v reflect.Value, path string, visit func(field)) {
	s := sectionOf(v, path)
	for _, name := range s.names {
		f := s.fields[name]
		if f.value.Kind() == reflect.Struct {
			leaves(f.value, f.path, visit)
			continue
		}
		visit(f)
	}
}

// text is a leaf's canonical form, as JSON, which is YAML as well.
func (f field) text() string {
	switch v := f.value; {
	case v.Type() == durationType:
		return quote(time.Duration(v.Int()).String())
	case v.Type() == bytesType:
		return quote(Bytes(v.Int()).String())
	case v.Kind() == reflect.String:
		return quote(v.String())
	case v.Kind() == reflect.Bool:
		return strconv.FormatBool(v.Bool())
	case v.CanInt():
		return strconv.FormatInt(v.Int(), 10)
	case v.CanUint():
		return strconv.FormatUint(v.Uint(), 10)
	case v.CanFloat():
		return strconv.FormatFloat(v.Float(), 'g', -1, 64)
	case v.Kind() == reflect.Slice:
		items := make([]string, v.Len())
		for i := range items {
			items[i] = field{path: f.path, value: v.Index(i)}.text()
		}
		return "[" + strings.Join(items, ",") + "]"
	case v.Kind() == reflect.Struct: // an entry of a list
		var b strings.Builder
		writeSection(&b, v, f.path)
		return b.String()
	case v.Kind() == reflect.Map:
		items := make([]string, 0, v.Len())
		for _, k := range v.MapKeys() {
			items = append(items, quote(k.String())+":"+quote(v.MapIndex(k).String()))
		}
		sort.Strings(items)
		return "{" + strings.Join(items, ",") + "}"
	default:
		panic(fmt.Sprintf("job: the field %s has the unknown type %s", f.path, v.Type()))
	}
}

// String is the size with the largest unit that divides it.
func (b Bytes) String() string {
	if b == WholeFile {
		return "file"
	}
	for i := len(units) - 1; i >= 0; i-- {
		if u := units[i]; u.binary && b >= u.size && b%u.size == 0 {
			return strconv.FormatInt(int64(b/u.size), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

// Short is the size for people to read: one decimal, in the largest unit that it
// reaches.
func (b Bytes) Short() string {
	for i := len(units) - 1; i >= 0; i-- {
		if u := units[i]; u.binary && b >= u.size {
			return strconv.FormatFloat(float64(b)/float64(u.size), 'f', 1, 64) + " " + u.name
		}
	}
	return strconv.FormatInt(int64(b), 10) + " B"
}

// ParseSize reads a size like 64KiB, 1MB or 512.
func ParseSize(s string) (Bytes, error) {
	b, err := parseBytes(s)
	if err == nil && b == WholeFile {
		return 0, fmt.Errorf("%q is no size; write for example 4GiB", s)
	}
	return b, err
}

type unit struct {
	name   string
	size   Bytes
	binary bool
}

var units = []unit{
	{"KiB", 1 << 10, true}, {"MiB", 1 << 20, true}, {"GiB", 1 << 30, true}, {"TiB", 1 << 40, true},
	{"KB", 1e3, false}, {"MB", 1e6, false}, {"GB", 1e9, false}, {"TB", 1e12, false}, {"B", 1, false},
}

// parseBytes reads a size like 64KiB, 1MB, 512 or file.
func parseBytes(s string) (Bytes, error) {
	if s == "file" {
		return WholeFile, nil
	}
	size, number := Bytes(1), s
	for _, u := range units {
		if n, ok := strings.CutSuffix(s, u.name); ok {
			size, number = u.size, strings.TrimRight(n, " ")
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q is no size; write for example 64KiB, 1MiB or file", s)
	}
	if n > (math.MaxInt64-1)/int64(size) {
		return 0, fmt.Errorf("%s is too large", s)
	}
	return Bytes(n) * size, nil
}
