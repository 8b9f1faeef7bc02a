package main

import (
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"starfish/internal/cli"
	"starfish/job"
	"starfish/reader"
)

// proposal makes a spec of what was found in a file.
type proposal struct {
	label, weight, group string // columns; empty: guess the label, no weight, no group
	profile              *reader.Profile

	b strings.Builder
}

// labelNames are what columns with labels are often called.
var labelNames = []string{"label", "target", "y", "class", "click", "clicked", "clk", "outcome", "response", "income"}

// yaml is the proposed spec.
func (p *proposal) yaml() (string, error) {
	f, label := p.profile, p.profile.Labels
	if f.Format != job.FormatLibsvm {
		var err error
		if label, err = p.special(); err != nil {
			return "", err
		}
	}
	if text, is := foreign(f, label); is {
		return "", cli.Usage("%s: %q is not in UTF-8, as a spec is: convert the file, for example with iconv -f LATIN1 -t UTF-8", f.File, text)
	}
	p.line("# Proposed by `starfish inspect-data` for %s: %s records, %s that cannot be read.",
		comment(f.File), thousands(f.Records), thousands(f.Bad))
	if !f.Complete {
		p.line("# Only the first records were looked at.")
	}
	if f.FirstBad != "" {
		p.line("# The first that cannot be read: %s", comment(f.FirstBad))
	}
	kind, labels := p.kind(label)
	p.line("job: %s", jobName(f.File))
	p.line("data:")
	p.line("  train: [%s]", strconv.Quote(f.File))
	p.line("  # test: [\"…\"]              # a file that is not trained on, to measure the model with")
	p.line("  format: %s", f.Format)
	if bad := f.Bad + label.Missing; bad > 0 {
		p.line("  max_bad_records: %d       # per chunk", bad)
	}
	if f.LineBreaks {
		p.line("  chunk: file               # because of line breaks in quotes")
	}
	if f.Format != job.FormatLibsvm {
		p.columns(labels)
	}
	p.line("model: {type: %s%s}", kind, p.bits())
	p.line("optimizer: {type: adagrad, learning_rate: 0.1}")
	p.line("train: {passes: 5, batch: 64}")
	return p.b.String(), nil
}

// foreign finds a text of a file that a spec would have to name and cannot, as
// it is not in UTF-8.
func foreign(f *reader.Profile, label *reader.ColumnStats) (text string, is bool) {
	var texts []string
	for _, c := range f.Columns {
		texts = append(texts, c.Name)
	}
	for _, v := range label.Values {
		texts = append(texts, v.Value)
	}
	for _, text := range texts {
		if !utf8.ValidString(text) {
			return text, true
		}
	}
	return "", false
}

func (p *proposal) line(format string, args ...any) { fmt.Fprintf(&p.b, format+"\n", args...) }

// comment is a text that stays on its line.
func comment(s string) string {
	return strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return '�'
		}
		return r
	}, s)
}

var notName = regexp.MustCompile(`[^a-zA-Z0-9-]+`)

// jobName is a name for the job by that of the file.
func jobName(file string) string {
	name, _, _ := strings.Cut(filepath.Base(file), ".")
	name = strings.Trim(notName.ReplaceAllString(name, "-"), "-")
	if name == "" {
		return "job"
	}
	return strconv.Quote(name[:min(len(name), 63)])
}

func (p *proposal) column(name string) *reader.ColumnStats {
	for _, c := range p.profile.Columns {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// special finds the label's column, and checks the others that were named.
func (p *proposal) special() (*reader.ColumnStats, error) {
	var names []string
	for _, c := range p.profile.Columns {
		names = append(names, c.Name)
	}
	for _, named := range [][2]string{{"--label", p.label}, {"--weight", p.weight}, {"--group", p.group}} {
		if named[1] != "" && !slices.Contains(names, named[1]) {
			return nil, cli.Usage("%s: there is no column %q among %s", named[0], named[1], strings.Join(names, ", "))
		}
	}
	if len(names) == 0 {
		return nil, cli.Usage("%s: there is no column", p.profile.File)
	}
	if p.label == "" {
		p.label = p.guessLabel(names)
	}
	return p.column(p.label), nil
}

// guessLabel takes a column that is called so, else the last or first with two
// values, else the last.
func (p *proposal) guessLabel(names []string) string {
	for _, want := range labelNames {
		for _, name := range names {
			if strings.EqualFold(name, want) {
				return name
			}
		}
	}
	all := p.profile.Columns
	for _, c := range []*reader.ColumnStats{all[len(all)-1], all[0]} {
		if c.Distinct == 2 && c.Missing == 0 {
			return c.Name
		}
	}
	return names[len(names)-1]
}

// positive are texts that mean yes.
var positive = []string{"1", "yes", "y", "true", "t", "positive", "pos", "clicked", "good"}

// kind is the model for a label, and the numbers of its texts.
func (p *proposal) kind(label *reader.ColumnStats) (model string, labels map[string]int) {
	p.line("# Label%s: %s", columnName(label, p.profile), describeLabel(label))
	if label.Missing > 0 {
		p.line("# %s without label cannot be trained on.", plural(label.Missing, "record", "records"))
	}
	numeric := label.Numeric()
	switch {
	case numeric && label.Distinct <= 2 && label.Whole && label.Min >= -1 && label.Max <= 1:
		return logistic, nil
	case numeric:
		return linear, nil
	case label.Distinct > len(label.Values):
		p.line("# It is neither a number nor one of two texts: no model of this version foretells that. --label names another column.")
		return linear, nil
	case label.Distinct != 2:
		p.line("# It has neither two values nor numbers, so the numbers below are only an order; models of several")
		p.line("# classes are not implemented in this version.")
		labels = make(map[string]int)
		for i, v := range label.Values {
			labels[v.Value] = i
		}
		return linear, labels
	}
	one := label.Values[1].Value // the rarer
	for _, v := range label.Values {
		if slices.Contains(positive, strings.ToLower(v.Value)) {
			one = v.Value
		}
	}
	labels = make(map[string]int)
	for _, v := range label.Values[:2] {
		labels[v.Value] = 0
	}
	labels[one] = 1
	return logistic, labels
}

// The models that are proposed.
const (
	logistic = "logistic"
	linear   = "linear"
)

func columnName(c *reader.ColumnStats, f *reader.Profile) string {
	if f.Format == job.FormatLibsvm {
		return ""
	}
	return " " + comment(strconv.Quote(c.Name))
}

// describeLabel says how the labels are spread.
func describeLabel(c *reader.ColumnStats) string {
	if !c.Numeric() && c.Distinct > len(c.Values) {
		return distinct(c) + " different texts"
	}
	if c.Distinct > 10 || len(c.Values) == 0 {
		return fmt.Sprintf("numbers from %s to %s, mean %s", short(c.Min), short(c.Max), short(c.Mean))
	}
	var total int64
	for _, v := range c.Values {
		total += v.Count
	}
	parts := make([]string, len(c.Values))
	for i, v := range c.Values {
		parts[i] = fmt.Sprintf("%s %s (%.1f %%)", comment(strconv.Quote(v.Value)), thousands(v.Count), 100*float64(v.Count)/float64(total))
	}
	return strings.Join(parts, ", ")
}

func short(x float64) string { return strconv.FormatFloat(x, 'g', 4, 64) }

// columns writes what only csv and tsv have.
func (p *proposal) columns(labels map[string]int) {
	f := p.profile
	p.line("  csv:")
	p.line("    header: %v", f.Header)
	if !f.Header {
		var names []string
		for _, c := range f.Columns {
			names = append(names, strconv.Quote(c.Name))
		}
		p.line("    columns: [%s]", strings.Join(names, ", "))
	}
	p.line("    delimiter: %s", strconv.Quote(f.Delimiter))
	if f.Comment != "" {
		p.line("    comment: %s", strconv.Quote(f.Comment))
	}
	if len(f.Missing) > 0 {
		p.line("    missing: [%s]", quotedList(f.Missing))
	}
	if len(labels) > 0 {
		texts := make([]string, 0, len(labels))
		for text := range labels {
			texts = append(texts, text)
		}
		slices.Sort(texts)
		for i, text := range texts {
			texts[i] = fmt.Sprintf("%s: %d", strconv.Quote(text), labels[text])
		}
		p.line("    labels: {%s}", strings.Join(texts, ", "))
	}
	p.line("  label: %s", strconv.Quote(p.label))
	if p.weight != "" {
		p.line("  weight: %s", strconv.Quote(p.weight))
	}
	if p.group != "" {
		p.line("  group: %s", strconv.Quote(p.group))
	}
	p.features()
}

func quotedList(list []string) string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = strconv.Quote(s)
	}
	return strings.Join(out, ", ")
}

// features writes one line for each column.
func (p *proposal) features() {
	var lines []string
	taken := false
	for _, c := range p.profile.Columns {
		if c.Name == p.label || c.Name == p.weight || c.Name == p.group {
			continue
		}
		if why := useless(c, p.profile.Records); why != "" {
			lines = append(lines, fmt.Sprintf("  # left out: %s: %s", comment(strconv.Quote(c.Name)), why))
			continue
		}
		taken = true
		lines = append(lines, "  - {name: "+strconv.Quote(c.Name)+", "+settingsOf(c)+"}   # "+describe(c)+p.doubts(c))
	}
	if taken {
		p.line("features:")
	} else {
		p.line("features: []   # nothing is left to learn from: name a column that says something about the label")
	}
	for _, line := range lines {
		p.line("%s", line)
	}
}

// useless says why a column should not be learned from.
func useless(c *reader.ColumnStats, records int64) string {
	switch {
	case c.Distinct == 0:
		return "has no values"
	case c.Distinct == 1 && c.Missing == 0:
		return "has the same value everywhere"
	case c.Counts && records > 20:
		return "counts the records"
	case c.Texts > 20 && c.Parts*3 < c.Texts && (int64(c.Distinct) == records || c.Distinct > reader.MaxDistinct):
		return distinct(c) + " different texts look like names of the records"
	}
	return ""
}

// settingsOf proposes type and transform of a column.
func settingsOf(c *reader.ColumnStats) string {
	switch {
	case !c.Numeric() && c.Parts*3 >= c.Texts && c.Parts > 0:
		return "type: list, sep: " + strconv.Quote(c.Separator) + ", pool: mean"
	case !c.Numeric():
		return "type: categorical"
	case max(c.Max, -c.Min) <= 3 || !(c.Stddev > 0):
		return "type: numeric"
	case c.Min >= 0 && 20*c.Min < c.Mean && (c.Max > c.Mean+10*c.Stddev || c.Stddev > 2*c.Mean): // a long tail
		return "type: numeric, transform: log1p"
	}
	s := fmt.Sprintf("type: numeric, transform: standard, mean: %s, stddev: %s",
		strconv.FormatFloat(c.Mean, 'g', 6, 64), strconv.FormatFloat(math.Max(c.Stddev, 1e-300), 'g', 6, 64))
	if c.Missing > 0 {
		s += fmt.Sprintf(", missing: %s", strconv.FormatFloat(c.Mean, 'g', 6, 64))
	}
	return s
}

// distinct is how many values a column has.
func distinct(c *reader.ColumnStats) string {
	if c.Distinct > reader.MaxDistinct {
		return "more than " + thousands(reader.MaxDistinct)
	}
	return thousands(int64(c.Distinct))
}

// describe is what stands behind a feature.
func describe(c *reader.ColumnStats) string {
	s := distinct(c) + " values"
	if c.Numeric() {
		s += fmt.Sprintf(" from %s to %s", short(c.Min), short(c.Max))
	}
	if c.Missing > 0 {
		s += fmt.Sprintf(", %s missing", thousands(c.Missing))
	}
	if c.Dates {
		s += "; dates: days of which there are no records mean nothing, a column with the month or weekday might"
	}
	return s
}

// weightNames are what columns with weights are often called.
var weightNames = []string{"weight", "weights", "sample_weight", "sampleweight", "case_weight", "instance_weight", "wt"}

// doubts is what might be wrong with taking a column for a feature.
func (p *proposal) doubts(c *reader.ColumnStats) string {
	every := int64(c.Distinct) == p.profile.Records || c.Distinct > reader.MaxDistinct
	switch {
	case c.Numeric() && c.Whole && every && p.profile.Records > 20:
		return "; another one in each record: delete the line if they are names, like an account's number"
	case c.Numeric() && c.Min >= 0 && p.weight == "" && slices.Contains(weightNames, strings.ToLower(c.Name)):
		return "; --weight " + comment(c.Name) + " if it says how much each record counts"
	}
	return ""
}

// bits proposes a key space with room: about 16 places for each value, from
// 2^18 on. libsvm's keys are taken as they are.
func (p *proposal) bits() string {
	if p.profile.Format == job.FormatLibsvm {
		return ""
	}
	values := 0
	for _, c := range p.profile.Columns {
		values += c.Distinct
	}
	bits := 18
	for bits < 28 && 1<<bits < 16*values {
		bits++
	}
	return fmt.Sprintf(", bits: %d", bits)
}
