package npd

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// unknownKeys returns an error for each key that neither node-problem-detector nor the agent reads: most are spelled
// wrongly, and so have no effect. Keys like "_comment" and "//" are comments.
func (f *File) unknownKeys() []error {
	if f.Kind == LogMonitor {
		return f.unknownIn(f.data, reflect.TypeFor[LogConfig](), nil)
	}
	return f.unknownIn(f.data, reflect.TypeFor[PluginConfig](), nil)
}

func (f *File) unknownIn(data json.RawMessage, t reflect.Type, path []any) (problems []error) {
	switch t.Kind() {
	case reflect.Pointer:
		return f.unknownIn(data, t.Elem(), path)
	case reflect.Slice:
		var items []json.RawMessage
		_ = json.Unmarshal(data, &items) // its type was checked when the file was decoded
		for i, item := range items {
			problems = append(problems, f.unknownIn(item, t.Elem(), append(slices.Clone(path), i))...)
		}
	case reflect.Struct:
		var values map[string]json.RawMessage
		_ = json.Unmarshal(data, &values)
		known := keysOf(t)
		for _, key := range slices.Sorted(maps.Keys(values)) {
			at := append(slices.Clone(path), any(key))
			switch inner, ok := known[strings.ToLower(key)]; {
			case ok:
				problems = append(problems, f.unknownIn(values[key], inner, at)...)
			case !strings.HasPrefix(key, "_") && !strings.HasPrefix(key, "/") && !strings.HasPrefix(key, "#"):
				problems = append(problems, f.at(problem{fmt.Sprintf("unknown key %q: it has no effect", key), at}))
			}
		}
	}
	return problems
}

// keysOf returns the keys of a struct, in lower case, as encoding/json reads them.
func keysOf(t reflect.Type) map[string]reflect.Type {
	keys := map[string]reflect.Type{}
	for field := range t.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case field.Anonymous && name == "":
			maps.Copy(keys, keysOf(field.Type))
		case name != "" && name != "-":
			keys[strings.ToLower(name)] = field.Type
		}
	}
	return keys
}
