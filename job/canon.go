package job

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
)

// JSON is the spec's canonical form: every field with its value, defaults
// included, in a fixed order. ParseSpec reads it too, as JSON is YAML.
func (s *Spec) JSON() []byte {
	var b strings.Builder
	writeSection(&b, reflect.ValueOf(s).Elem(), "")
	return []byte(b.String())
}

func writeSection(b *strings.Builder, v reflect.Value, path string) {
	known := sectionOf(v, path)
	b.WriteByte('{')
	comma := ""
	for _, name := range known.names {
		f := known.fields[name]
		if f.omitempty && (f.value.IsZero() || (f.value.Kind() != reflect.Struct && hasNone(f.value))) {
			continue
		}
		b.WriteString(comma + quote(name) + ":")
		comma = ","
		if f.value.Kind() == reflect.Struct {
			writeSection(b, f.value, f.path)
			continue
		}
		b.WriteString(f.text())
	}
	b.WriteByte('}')
}

// hasNone tells an empty list or mapping.
func hasNone(v reflect.Value) bool {
	return (v.Kind() == reflect.Slice || v.Kind() == reflect.Map) && v.Len() == 0
}

// MarshalJSON is the canonical form.
func (s *Spec) MarshalJSON() ([]byte, error) { return s.JSON(), nil }

// UnmarshalJSON reads the canonical form as strictly as ParseSpec does. Paths
// stay as they are.
func (s *Spec) UnmarshalJSON(text []byte) error {
	parsed, err := ParseSpec(text, "", nil)
	if err != nil {
		return err
	}
	*s = *parsed
	return nil
}

// Diff is the first difference between the spec of an existing job and another
// one, in words; empty if they mean the same job. The section run, which only
// says how many processes to start, may differ.
func Diff(existing, other *Spec) string {
	theirs := make(map[string]string)
	leaves(reflect.ValueOf(other).Elem(), "", func(f field) { theirs[f.path] = f.text() })
	difference := ""
	leaves(reflect.ValueOf(existing).Elem(), "", func(f field) {
		if difference != "" || strings.HasPrefix(f.path, "run.") {
			return
		}
		if have := f.text(); have != theirs[f.path] {
			difference = fmt.Sprintf("%s: %s in the job, %s here", f.path, have, theirs[f.path])
		}
	})
	return difference
}

func quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("job: a text: %v", err))
	}
	return string(b)
}
