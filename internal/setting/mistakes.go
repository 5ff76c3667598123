// Package setting has the form in which a part of the configuration reports its invalid values: a method
//
//	Validate() error
//
// that returns Mistakes, or a plain error if the part is a single value.
package setting

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Mistakes are the reasons why values are invalid, by key. Keys below a key are joined by dots, and elements of a list
// have their index: "kinds.mount", "windows.0".
type Mistakes map[string]string

// Check adds a mistake unless the value is valid. The first mistake of a key stays.
func (m Mistakes) Check(key string, valid bool, format string, args ...any) {
	if _, known := m[key]; !valid && !known {
		m[key] = fmt.Sprintf(format, args...)
	}
}

// Add adds the result of a Validate below a key.
func (m Mistakes) Add(key string, err error) {
	mistakes, ok := errors.AsType[Mistakes](err)
	if !ok {
		m.Check(key, err == nil, "%v", err)
	}
	for below, why := range mistakes {
		m.Check(strings.Trim(key+"."+below, "."), false, "%s", why)
	}
}

// OrNil returns nil if there is no mistake.
func (m Mistakes) OrNil() error {
	if len(m) == 0 {
		return nil
	}
	return m
}

// Error returns one line for each mistake, in the order of the keys.
func (m Mistakes) Error() string {
	lines := make([]string, 0, len(m))
	for _, key := range slices.Sorted(maps.Keys(m)) {
		lines = append(lines, key+": "+m[key])
	}
	return strings.Join(lines, "\n")
}
