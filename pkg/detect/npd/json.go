package npd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// withoutTrailingCommas returns JSON in which blanks replace commas before a closing bracket. Offsets do not change.
func withoutTrailingCommas(data []byte) []byte {
	data = bytes.Clone(data)
	comma, quoted := -1, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted, comma = !quoted, -1
		case quoted, c == ' ', c == '\t', c == '\n', c == '\r':
		case c == ',':
			comma = i
		case (c == '}' || c == ']') && comma >= 0:
			data[comma], comma = ' ', -1
		default:
			comma = -1
		}
	}
	return data
}

// locate returns the offset of the value at the end of a path, or of the nearest value above it. The case of keys does
// not matter.
func locate(data []byte, path []any) int64 {
	d := json.NewDecoder(bytes.NewReader(data))
	at := int64(0)
	for _, step := range path {
		if _, err := d.Token(); err != nil { // { or [
			return at
		}
		if !advance(d, step) {
			return at
		}
		at = d.InputOffset()
		at += int64(len(data[at:]) - len(bytes.TrimLeft(data[at:], " \t\r\n:,")))
	}
	return at
}

// advance reads up to the value of a key or an index.
func advance(d *json.Decoder, step any) bool {
	for i := 0; d.More(); i++ {
		if key, ok := step.(string); ok {
			token, err := d.Token()
			if err != nil {
				return false
			}
			if name, ok := token.(string); ok && strings.EqualFold(name, key) {
				return true
			}
		} else if step == i {
			return true
		}
		var other json.RawMessage
		if d.Decode(&other) != nil {
			return false
		}
	}
	return false
}

// duration reads a duration; an empty text is the default.
func duration(text string, otherwise time.Duration, path []any) (time.Duration, error) {
	if text == "" {
		return otherwise, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, problem{fmt.Sprintf("%q is no duration such as 30s or 5m", text), path}
	}
	if d < 0 {
		return 0, problem{fmt.Sprintf("%q must not be negative", text), path}
	}
	return d, nil
}

// checkPositive returns an error unless a duration is above 0.
func checkPositive(text string, path []any) error {
	d, err := duration(text, 0, path)
	if err == nil && d < time.Millisecond {
		err = problem{fmt.Sprintf("%q: must be above 0", text), path}
	}
	return err
}
