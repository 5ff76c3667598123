package config

import (
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// problem is one invalid value: its path by the names in the file, and the reason.
type problem struct {
	path []string
	what string
}

// problems returns the invalid values of c. Rules for a type hold everywhere: durations have a unit and are not
// negative, counts are not negative, severities are known ones. The settings themselves check the rest: any part of the
// configuration may have a method Problems() map[string]string, by key. Its message about a value replaces all others.
func (c Config) problems() []problem {
	problems := oncePerPath(walk(reflect.ValueOf(c), nil))
	for _, p := range []struct{ key, path string }{
		{"stateDir", c.StateDir}, {"socket", c.Socket},
	} {
		if !filepath.IsAbs(p.path) {
			problems = append(problems, problem{[]string{p.key}, fmt.Sprintf("%q is not an absolute path", p.path)})
		}
	}
	if len(problems) == 0 { // rules and plugins that are valid alone may still conflict
		problems = append(problems, c.ownProblems()...)
	}
	return problems
}

// oncePerPath keeps the first problem of each value: walk calls the settings' own checks before the rules for types.
func oncePerPath(problems []problem) []problem {
	seen := map[string]bool{}
	return slices.DeleteFunc(problems, func(p problem) bool {
		path := strings.Join(p.path, "\x00")
		again := seen[path]
		seen[path] = true
		return again
	})
}

// ownProblems calls the settings' own checks.
func ownProblems(settings any, path []string) []problem {
	s, ok := settings.(interface{ Problems() map[string]string })
	if !ok {
		return nil
	}
	wrong := s.Problems()
	problems := make([]problem, 0, len(wrong))
	for _, key := range slices.Sorted(maps.Keys(wrong)) {
		problems = append(problems, problem{slices.Concat(path, strings.Split(key, ".")), wrong[key]})
	}
	return problems
}

func walk(v reflect.Value, path []string) []problem {
	problems := ownProblems(v.Interface(), path)
	switch value := v.Interface().(type) {
	case time.Duration:
		if value < 0 || value > 0 && value < time.Millisecond {
			return []problem{{path, fmt.Sprintf("%d: a duration is positive and carries its unit, such as 30s or 10m",
				int64(value))}}
		}
		return nil
	case finding.Severity:
		if value != "" && !value.Valid() {
			return []problem{{path, fmt.Sprintf("%q: a severity is fatal, warning or info", value)}}
		}
		return nil
	}
	switch v.Kind() {
	case reflect.Interface, reflect.Pointer:
		if !v.IsNil() {
			return walk(v.Elem(), path)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			field := v.Type().Field(i)
			name, options, _ := strings.Cut(field.Tag.Get("yaml"), ",")
			if !field.IsExported() || name == "-" {
				continue
			}
			at := path
			if options != "inline" {
				at = append(slices.Clone(path), name)
			}
			problems = append(problems, walk(v.Field(i), at)...)
		}
	case reflect.Map:
		for _, key := range slices.SortedFunc(slices.Values(v.MapKeys()), byString) {
			problems = append(problems, walk(v.MapIndex(key), append(slices.Clone(path), key.String()))...)
		}
	case reflect.Slice:
		for i := range v.Len() {
			problems = append(problems, walk(v.Index(i), append(slices.Clone(path), strconv.Itoa(i)))...)
		}
	case reflect.Int, reflect.Int64:
		if v.Int() < 0 {
			problems = append(problems, problem{path, fmt.Sprintf("%d: must not be negative", v.Int())})
		}
	case reflect.Float64:
		if v.Float() < 0 {
			problems = append(problems, problem{path, fmt.Sprintf("%v: must not be negative", v.Float())})
		}
	case reflect.String:
		problems = append(problems, pathProblem(v.String(), path)...)
	}
	return problems
}

func byString(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) }

// pathProblem checks a value under "paths", which must be absolute.
func pathProblem(value string, path []string) []problem {
	isPath := len(path) > 1 && path[0] == "paths" &&
		!slices.Contains([]string{"kubeletHealthz", "kubeletAPI", "cgroupDriver"}, path[1])
	if isPath && value != "" && !filepath.IsAbs(value) {
		return []problem{{path, fmt.Sprintf("%q is not an absolute path", value)}}
	}
	return nil
}
