package reader

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
)

// defect says what is wrong with a record.
type defect int

const (
	labelMissing defect = iota + 1
	labelThere
	labelSyntax
	labelNotBinary
	keySyntax
	keyRange
	valueSyntax
	labelTooLarge
	valueTooLarge
	groupSyntax
	strayReturn
	recordTooLong
	// Of formats with columns.
	fieldCount
	quoteOpen
	quoteTail
	weightSyntax
	cellLabel
	cellNotBinary
	cellNumber
	cellTooLarge
)

// reason is the last record's defect in words. b is the text it was read from.
func (p *parser) reason(b []byte) string {
	if p.why == recordTooLong {
		return fmt.Sprintf("the record is longer than %d MiB", MaxRecord>>20)
	}
	if p.why == strayReturn {
		return "a carriage return within the line"
	}
	text, cut := b[p.from:p.to], ""
	if len(text) > shown {
		text, cut = text[:shown], "…"
	}
	switch p.why {
	case labelMissing:
		return fmt.Sprintf("the label is missing: the line starts with %q%s", text, cut)
	case labelThere:
		return fmt.Sprintf("the line starts with %q%s, which could be a label: without labels it must start with key:value", text, cut)
	case labelSyntax:
		return fmt.Sprintf("the label %q%s is not a finite number", text, cut)
	case labelNotBinary:
		return fmt.Sprintf("the label %q%s is neither 1 nor 0 nor -1, which are the labels of this model", text, cut)
	case keySyntax:
		return fmt.Sprintf("%q%s is not of the form key:value", text, cut)
	case keyRange:
		return fmt.Sprintf("the key of %q%s is not in 0 … 2^64-1", text, cut)
	case labelTooLarge:
		return fmt.Sprintf("the label %q%s %s", text, cut, p.tooLarge())
	case valueTooLarge:
		return fmt.Sprintf("the value of %q%s %s", text, cut, p.tooLarge())
	case valueSyntax:
		return fmt.Sprintf("the value %q%s is not a finite number%s", text, cut, decimalComma(text))
	default:
		return fmt.Sprintf("%q%s is not of the form qid:number", text, cut)
	}
}

// tooLarge is the rest of the sentence about a value that is beyond.
func (p *parser) tooLarge() string { return fmt.Sprintf("is larger than %g (data.max_value)", p.limit) }

// flaw notes what is wrong with a cell; it is false, which ends the record.
func (t *table) flaw(why defect, column string, cell []byte) bool {
	t.why, t.column = why, column
	t.culprit = append(t.culprit[:0], cell[:min(len(cell), 2*shown)]...)
	return false
}

// shown is how much of a text a message has.
const shown = 40

// reason is the last record's defect in words.
func (t *table) reason() string {
	text, cut := t.culprit, ""
	if len(text) > shown {
		text, cut = text[:shown], "…"
	}
	switch t.why {
	case fieldCount:
		if t.found > t.want {
			return fmt.Sprintf("%d fields instead of %d; a field with %q in it must stand in quotes", t.found, t.want, string(t.c.Delimiter))
		}
		return fmt.Sprintf("%d fields instead of %d", t.found, t.want)
	case quoteOpen:
		return fmt.Sprintf("the quote of %q%s is not closed in its line; line breaks in quotes need `chunk: file`", text, cut)
	case quoteTail:
		return fmt.Sprintf("something follows the closing quote in %q%s; a quote within quotes is written twice", text, cut)
	case weightSyntax:
		if len(text) == 0 {
			return fmt.Sprintf("the weight (column %q) is missing", t.column)
		}
		return fmt.Sprintf("the weight %q%s (column %q) is not a number from 0 on", text, cut, t.column)
	case cellLabel:
		if len(text) == 0 {
			return fmt.Sprintf("the label (column %q) is missing", t.column)
		}
		return fmt.Sprintf("the label %q%s (column %q) is neither a finite number nor in data.csv.labels, which gives texts numbers, like {yes: 1, no: 0}",
			text, cut, t.column)
	case cellNotBinary:
		return fmt.Sprintf("the label %q%s (column %q) is neither 1 nor 0 nor -1, which are the labels of this model; data.csv.labels translates others",
			text, cut, t.column)
	case cellNumber:
		return fmt.Sprintf("%q%s (column %q) is not a finite number%s", text, cut, t.column, noNumber(text))
	case cellTooLarge:
		if t.column == t.c.Label || t.column == t.c.Weight {
			return fmt.Sprintf("%q%s (column %q) %s", text, cut, t.column, t.tooLarge())
		}
		return fmt.Sprintf("%q%s (column %q) %s; if the column is right, give it transform: standard or log1p, or type: categorical",
			text, cut, t.column, t.tooLarge())
	default:
		return t.parser.reason(nil)
	}
}

// noNumber is advice, as the rest of a sentence, about a text in a column of
// numbers.
func noNumber(text []byte) string {
	if comma := decimalComma(text); comma != "" {
		return comma
	}
	if _, tooLarge := decimal(padded(string(text))); tooLarge {
		return ""
	}
	return "; if it means that there is none, list it in data.csv.missing; if the column has texts, give it type: categorical"
}

// thousands are numbers whose commas may stand between thousands.
var thousands = regexp.MustCompile(`^[-+]?[0-9]{1,3}(,[0-9]{3})+(\.[0-9]*)?$`)

// decimalComma is advice, as the rest of a sentence, about a number that is
// written with commas.
func decimalComma(text []byte) string {
	if bytes.IndexByte(text, ',') < 0 {
		return ""
	}
	if _, ok := decimal(padded(strings.ReplaceAll(string(text), ",", ""))); !ok {
		return ""
	}
	if thousands.Match(text) {
		return "; write no separators between thousands, and decimals with a point"
	}
	return "; write decimals with a point"
}
