package job

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// maxSpec bounds the text of a spec.
const maxSpec = 1 << 20

// Option changes how a spec is read.
type Option func(*options)

type options struct {
	file       string
	models     []string
	checkFiles bool
}

// FileName is what errors call the spec.
func FileName(name string) Option { return func(o *options) { o.file = name } }

// Models makes any other model.type an error. Without it every name is taken,
// since only trainers know models.
func Models(names ...string) Option { return func(o *options) { o.models = names } }

// CheckFiles makes data files that are missing errors of the spec.
func CheckFiles() Option { return func(o *options) { o.checkFiles = true } }

// ReadSpec reads the spec in a file; sets are overrides of the form path=value.
// Its errors that concern the content are *SpecError.
func ReadSpec(path string, sets []string, opts ...Option) (*Spec, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, Exit(ExitUsage, fmt.Errorf("job: the spec cannot be read: %w", err))
	}
	return ParseSpec(text, filepath.Dir(path), sets, append([]Option{FileName(path)}, opts...)...)
}

// ParseSpec reads a spec. Relative paths in it are relative to dir. sets are
// overrides of the form path=value, like train.batch=128, whose values are
// YAML; an empty value takes the field out, so that its default holds.
func ParseSpec(text []byte, dir string, sets []string, opts ...Option) (*Spec, error) {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	p := &parse{problems: problems{file: o.file, places: make(map[string]place)}, sets: make(map[*yaml.Node]string)}
	root := p.document(text)
	if err := p.err(); err != nil {
		return nil, err
	}
	for _, set := range sets {
		p.set(root, set)
	}
	spec := defaults()
	p.section(root, reflect.ValueOf(spec).Elem(), "")
	spec.places = p.places
	spec.adjustColumns(p.places)
	spec.Optimizer.adjust(p.places)
	spec.Train.adjust(p.places)
	if dir != "" {
		if err := spec.resolve(dir); err != nil {
			return nil, err
		}
	}
	spec.check(&p.problems, o)
	if err := p.err(); err != nil {
		return nil, err
	}
	spec.Optimizer.Schedule.normalise()
	return spec, nil
}

// parse turns a tree of YAML nodes into a Spec.
type parse struct {
	problems
	sets map[*yaml.Node]string // nodes that came from a --set
}

// document parses the text; it returns an empty mapping if that fails.
func (p *parse) document(text []byte) *yaml.Node {
	empty := &yaml.Node{Kind: yaml.MappingNode}
	if len(text) > maxSpec {
		p.addAt(place{}, "", "the spec is longer than %d bytes", maxSpec)
		return empty
	}
	var doc, second yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	err := decoder.Decode(&doc)
	switch {
	case errors.Is(err, io.EOF):
		p.addAt(place{}, "", "the spec is empty")
		return empty
	case err != nil:
		p.syntax(err)
		return empty
	}
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		p.addAt(place{line: second.Line}, "", "the spec must be a single YAML document")
	}
	root := resolveAlias(doc.Content[0])
	if root.Kind != yaml.MappingNode {
		advice := ""
		if root.Kind == yaml.ScalarNode {
			advice = "; if this is data, `starfish inspect-data FILE` proposes a spec for it"
		}
		p.addAt(place{line: root.Line}, "", "the spec must be a mapping of fields, not %s%s", shortened(describe(root)), advice)
		return empty
	}
	return root
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

// syntax reports an error of the YAML parser.
func (p *parse) syntax(err error) {
	text := err.Error()
	m := yamlLine.FindStringSubmatch(text)
	at := place{line: 1} // the parser leaves out the line when it is the first
	if m != nil {
		text = text[len(m[0]):]
	}
	if m != nil && m[1] != "" {
		at.line, _ = strconv.Atoi(m[1])
	}
	switch {
	case strings.Contains(text, "cannot start any token"):
		text += "; indent with blanks, not with tabs, and put texts that begin with one of @ ` % into quotes"
	case strings.Contains(text, "UTF-8"):
		text += "; a spec is UTF-8"
	}
	p.addAt(at, "", "not valid YAML: %s", strings.ReplaceAll(text, "\n", "; "))
}

// set puts the value of path=value into the tree.
func (p *parse) set(root *yaml.Node, set string) {
	at := place{set: set}
	path, value, ok := strings.Cut(set, "=")
	if !ok || path == "" {
		p.addAt(at, "", "must be of the form path=value")
		return
	}
	at.set = path
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(value), &doc); err != nil {
		p.addAt(at, path, "the value %q is not valid YAML", value)
		return
	}
	names := strings.Split(path, ".")
	node := root
	for _, name := range names[:len(names)-1] {
		child := resolveAlias(lookup(node, name))
		if child == nil || child.Tag == "!!null" {
			child = &yaml.Node{Kind: yaml.MappingNode}
			p.sets[child] = path
			replace(node, name, child)
		}
		if child.Kind != yaml.MappingNode {
			p.addAt(at, "", "%s is no section", name)
			return
		}
		node = child
	}
	last := names[len(names)-1]
	if len(doc.Content) == 0 || doc.Content[0].Tag == "!!null" {
		remove(node, last)
		return
	}
	p.sets[doc.Content[0]] = path
	replace(node, last, doc.Content[0])
}

func lookup(m *yaml.Node, name string) *yaml.Node {
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value == name {
			return m.Content[i+1]
		}
	}
	return nil
}

func replace(m *yaml.Node, name string, value *yaml.Node) {
	remove(m, name)
	m.Content = append(m.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: name}, value)
}

func remove(m *yaml.Node, name string) {
	for i := len(m.Content) - 2; i >= 0; i -= 2 {
		if m.Content[i].Value == name {
			m.Content = slices.Delete(m.Content, i, i+2)
		}
	}
}

func resolveAlias(n *yaml.Node) *yaml.Node {
	for i := 0; n != nil && n.Kind == yaml.AliasNode && i < 8; i++ {
		n = n.Alias
	}
	return n
}

// section reads a mapping into a struct.
func (p *parse) section(n *yaml.Node, v reflect.Value, path string) {
	known := sectionOf(v, path)
	lines := make(map[string]int)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], resolveAlias(n.Content[i+1])
		at := place{line: key.Line, set: p.sets[value]}
		full := join(path, key.Value)
		if first, twice := lines[key.Value]; twice {
			p.addAt(at, full, "given twice, first in line %d", first)
			continue
		}
		lines[key.Value] = key.Line
		f, ok := known.fields[key.Value]
		switch {
		case ok:
			p.places[full] = at
			p.field(value, f)
		case key.Tag == "!!merge":
			p.addAt(at, full, "merge keys are not implemented; an alias stands for a whole section, like `train: *usual`")
		case later(full):
			p.addAt(at, full, "not implemented in this version")
		default:
			p.addAt(at, full, "unknown field%s", meant(key.Value, known.names))
		}
	}
}

// field reads a node into a field.
func (p *parse) field(n *yaml.Node, f field) {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		p.add(f.path, "has no value")
		return
	}
	switch v := f.value; v.Kind() {
	case reflect.Struct:
		if n.Kind != yaml.MappingNode {
			p.add(f.path, "must be a mapping of fields, not %s", describe(n))
			return
		}
		p.section(n, v, f.path)
	case reflect.Slice:
		p.list(n, f)
	case reflect.Map:
		p.mapping(n, f)
	default:
		if n.Kind != yaml.ScalarNode {
			p.add(f.path, "must be %s, not %s", kindOf(v), describe(n))
			return
		}
		p.scalar(n, f)
	}
}

// list reads a list of texts or numbers, for which a single one stands too, or
// of mappings.
func (p *parse) list(n *yaml.Node, f field) {
	items := []*yaml.Node{n}
	switch n.Kind {
	case yaml.SequenceNode:
		items = n.Content
	case yaml.ScalarNode:
	default:
		p.add(f.path, "must be a list, not %s", describe(n))
		return
	}
	if f.value.Type().Elem().Kind() == reflect.Struct && n.Kind != yaml.SequenceNode {
		p.add(f.path, "must be a list, not %s", describe(n))
		return
	}
	list := reflect.MakeSlice(f.value.Type(), 0, len(items))
	for i, item := range items {
		item = resolveAlias(item)
		path := fmt.Sprintf("%s[%d]", f.path, i)
		p.places[path] = place{line: item.Line, set: p.sets[n]}
		value := reflect.New(f.value.Type().Elem()).Elem()
		if value.Kind() != reflect.String {
			p.field(item, field{path: path, value: value})
			list = reflect.Append(list, value)
			continue
		}
		empty := item.Value == "" && f.path != "data.csv.missing"
		if item.Kind != yaml.ScalarNode || item.Tag == "!!null" || empty {
			p.add(path, "must be a text, not %s", describe(item))
			continue
		}
		value.SetString(item.Value)
		list = reflect.Append(list, value)
	}
	f.value.Set(list)
}

// mapping reads a mapping from text to text.
func (p *parse) mapping(n *yaml.Node, f field) {
	if n.Kind != yaml.MappingNode {
		p.add(f.path, "must be a mapping, not %s", describe(n))
		return
	}
	m := make(map[string]string)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], resolveAlias(n.Content[i+1])
		path := join(f.path, key.Value)
		p.places[path] = place{line: key.Line, set: p.sets[n]}
		if _, twice := m[key.Value]; twice {
			p.add(path, "given twice")
		}
		if value.Kind != yaml.ScalarNode || value.Tag == "!!null" {
			p.add(path, "must be a text or a number, not %s", describe(value))
			continue
		}
		m[key.Value] = value.Value
	}
	f.value.Set(reflect.ValueOf(m))
}

// scalar reads a single value.
func (p *parse) scalar(n *yaml.Node, f field) {
	v := f.value
	switch {
	case v.Type() == durationType:
		d, err := time.ParseDuration(n.Value)
		if err != nil {
			p.add(f.path, "%q is no duration; write for example 500ms, 30s or 2m", n.Value)
			return
		}
		v.SetInt(int64(d))
	case v.Type() == bytesType:
		b, err := parseBytes(n.Value)
		if err != nil {
			p.add(f.path, "%v", err)
			return
		}
		v.SetInt(int64(b))
	case v.Kind() == reflect.String:
		v.SetString(n.Value)
	default:
		number := reflect.New(v.Type())
		if err := n.Decode(number.Interface()); err != nil || !typed(n, v) {
			p.add(f.path, "must be %s, not %s", kindOf(v), describe(n))
			return
		}
		if v.CanFloat() && (math.IsNaN(number.Elem().Float()) || math.IsInf(number.Elem().Float(), 0)) {
			p.add(f.path, "must be a finite number, not %s", n.Value)
			return
		}
		v.Set(number.Elem())
	}
}

// typed tells whether a scalar was written as what the field is: the YAML
// decoder would also take 64.0 for an integer and "64" for a number.
func typed(n *yaml.Node, v reflect.Value) bool {
	switch n.ShortTag() {
	case "!!int":
		return v.Kind() != reflect.Bool
	case "!!float":
		return v.CanFloat()
	case "!!bool":
		return v.Kind() == reflect.Bool
	}
	return false
}

func kindOf(v reflect.Value) string {
	switch {
	case v.Kind() == reflect.Bool:
		return "true or false"
	case v.CanUint():
		return "a whole number from 0 to 2^64-1"
	case v.CanInt():
		return "a whole number"
	case v.CanFloat():
		return "a number"
	default:
		return "a text"
	}
}

// shortened is the beginning of a long text.
func shortened(text string) string {
	if most := 60; len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.ScalarNode:
		if n.Tag == "!!null" || n.Value == "" {
			return "nothing"
		}
		return strconv.Quote(n.Value)
	default:
		return "an alias"
	}
}
