package bundle

import (
	"fmt"
	"reflect"
	"strings"
	"unicode/utf8"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/verdict"
)

// rewriter defines how strings are replaced. A nil function leaves them unchanged.
type rewriter struct {
	text func(string) string
	pod  func(object.Pod) object.Pod    // before text
	fact func(key, value string) string // of a map from names to texts, instead of text
}

// rewrite returns a deep copy of v with its strings replaced, including keys of maps. An error becomes one with the
// replaced text and the same kinds.
func rewrite[T any](v T, r rewriter) T {
	var copied T
	r.copy(reflect.ValueOf(&copied).Elem(), reflect.ValueOf(&v).Elem())
	return copied
}

func (r rewriter) copy(to, from reflect.Value) {
	if pod, ok := from.Interface().(object.Pod); ok && r.pod != nil {
		to.Set(reflect.ValueOf(r.pod(pod)))
		return
	}
	switch from.Kind() { // the others have no strings
	case reflect.String:
		to.SetString(r.string(from.String()))
	case reflect.Struct:
		r.copyStruct(to, from)
	case reflect.Slice:
		if from.IsNil() {
			return
		}
		to.Set(reflect.MakeSlice(from.Type(), from.Len(), from.Len()))
		for i := range from.Len() {
			r.copy(to.Index(i), from.Index(i))
		}
	case reflect.Map:
		r.copyMap(to, from)
	case reflect.Pointer:
		if !from.IsNil() {
			to.Set(reflect.New(from.Type().Elem()))
			r.copy(to.Elem(), from.Elem())
		}
	case reflect.Interface:
		if err, ok := from.Interface().(error); ok {
			recorded := verdict.RecordError(err)
			recorded.Text = r.string(recorded.Text)
			to.Set(reflect.ValueOf(recorded))
		}
	default:
		to.Set(from)
	}
}

func (r rewriter) copyStruct(to, from reflect.Value) {
	to.Set(from)
	for i := range from.NumField() {
		if from.Type().Field(i).IsExported() { // unexported fields hold no foreign text: those of time.Time
			to.Field(i).SetZero()
			r.copy(to.Field(i), from.Field(i))
		}
	}
}

func (r rewriter) copyMap(to, from reflect.Value) {
	if from.IsNil() {
		return
	}
	to.Set(reflect.MakeMapWithSize(from.Type(), from.Len()))
	for entries := from.MapRange(); entries.Next(); {
		key := reflect.New(from.Type().Key()).Elem()
		if kind, id, ok := strings.Cut(entries.Key().String(), "/"); ok && from.Type() == historyType() {
			key.SetString(kind + "/" + r.string(id)) // like the ID of the object
		} else {
			r.copy(key, entries.Key())
		}
		value := reflect.New(from.Type().Elem()).Elem()
		r.copy(value, entries.Value())
		if r.fact != nil && value.Kind() == reflect.String {
			value.SetString(r.fact(entries.Key().String(), value.String()))
		}
		to.SetMapIndex(key, value)
	}
}

func historyType() reflect.Type { return reflect.TypeFor[object.History]() }

func (r rewriter) string(s string) string {
	if r.text != nil {
		s = r.text(s)
	}
	return s
}

// Printable returns a copy of v whose strings a terminal shows as they are: it escapes invalid UTF-8 and control
// characters.
func Printable[T any](v T) T {
	return rewrite(v, rewriter{text: func(s string) string { return escape(s, isControl) }})
}

// escape replaces invalid UTF-8, and some characters, so that different texts stay different.
func escape(s string, also func(rune) bool) string {
	if utf8.ValidString(s) && strings.IndexFunc(s, also) < 0 {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		c, n := utf8.DecodeRuneInString(s)
		switch {
		case c == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case also(c):
			fmt.Fprintf(&b, `\u%04x`, c)
		default:
			b.WriteString(s[:n])
		}
		s = s[n:]
	}
	return b.String()
}

// isControl reports whether a terminal may interpret a character as a command: C0, DEL and C1, except line feed and
// tab, and characters that reverse the direction of a text.
func isControl(c rune) bool {
	return c < ' ' && c != '\n' && c != '\t' || c >= 0x7f && c < 0xa0 || c >= 0x202a && c <= 0x202e ||
		c >= 0x2066 && c <= 0x2069
}
