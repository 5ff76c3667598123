package event

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"unicode"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// misspelled refuses JSON with a name that differs from one of a type only in case: encoding/json takes it for this one,
// other readers ignore it.
func misspelled(text []byte, t reflect.Type) error {
	var value any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber() // unknown members may have any
	if err := decoder.Decode(&value); err != nil {
		return err
	}
	return misspelledIn(value, t)
}

func misspelledIn(value any, t reflect.Type) error {
	switch value := value.(type) {
	case []any:
		for i := 0; i < len(value) && t.Kind() == reflect.Slice; i++ {
			if err := misspelledIn(value[i], t.Elem()); err != nil {
				return err
			}
		}
	case map[string]any:
		for i := 0; t.Kind() == reflect.Struct && i < t.NumField(); i++ {
			known, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
			if err := misspelledIn(value[known], t.Field(i).Type); err != nil {
				return err
			}
			delete(value, known)
			for name := range value {
				if strings.EqualFold(name, known) {
					return fmt.Errorf("the name %.64q differs from %q in case", name, known)
				}
			}
		}
	}
	return nil
}

// unprintable refuses control characters in the identity of a fault or leftover: the keys of two could be equal.
func unprintable(data any) error {
	switch data := data.(type) {
	case Fault:
		return unprintableIn(data.Check, data.Reason, data.Subject)
	case Activity:
		return unprintableIn(data.Check, "", data.Subject)
	case Snapshot:
		for _, f := range data.Faults {
			if err := unprintable(f); err != nil {
				return err
			}
		}
		for _, l := range data.Leftovers {
			if err := unprintable(l); err != nil {
				return err
			}
		}
	}
	return nil
}

func unprintableIn(check, reason string, s finding.Subject) error {
	for _, field := range [][2]string{{"check", check}, {"reason", reason}, {"subject.kind", s.Kind}, {"subject.name", s.Name},
		{"subject.uid", s.UID}} {
		if strings.ContainsFunc(field[1], unicode.IsControl) {
			return fmt.Errorf("%s has control characters", field[0])
		}
	}
	return nil
}
