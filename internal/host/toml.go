package host

import (
	"errors"
	"fmt"

	"github.com/pelletier/go-toml/v2"
)

// maxTOML bounds a configuration file, in bytes; maxTOMLDepth how deep its brackets are nested, since the parser recurses.
const (
	maxTOML      = 1 << 20
	maxTOMLDepth = 100
)

// ParseTOMLStrings returns the strings and arrays of strings of a TOML file by their full key, its parts joined by dots:
//
//	[plugins."io.containerd.grpc.v1.cri".cni]
//	  conf_dir = "/etc/cni/net.d"                  plugins.io.containerd.grpc.v1.cri.cni.conf_dir
//
// Values of other types are left out. The error of a file that is no TOML names the line.
func ParseTOMLStrings(data []byte) (map[string][]string, error) {
	if len(data) > maxTOML {
		return nil, fmt.Errorf("larger than %d bytes", maxTOML)
	}
	if tooDeep(data) {
		return nil, fmt.Errorf("nested more than %d times", maxTOMLDepth)
	}
	var tree map[string]any
	if err := toml.Unmarshal(data, &tree); err != nil {
		if broken, ok := errors.AsType[*toml.DecodeError](err); ok {
			line, _ := broken.Position()
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		return nil, err
	}
	values := make(map[string][]string)
	addTOMLStrings(values, "", tree)
	return values, nil
}

// tooDeep reports whether more brackets than are allowed follow one another without an end between them: also in strings
// and comments, where no real file has that many.
func tooDeep(data []byte) bool {
	depth := 0
	for _, c := range data {
		switch c {
		case '[', '{':
			depth++
		case ']', '}':
			depth = max(0, depth-1)
		}
		if depth > maxTOMLDepth {
			return true
		}
	}
	return false
}

func addTOMLStrings(values map[string][]string, prefix string, table map[string]any) {
	for key, value := range table {
		key = prefix + key
		switch value := value.(type) {
		case string:
			values[key] = []string{value}
		case []any:
			for _, element := range value {
				if text, ok := element.(string); ok {
					values[key] = append(values[key], text)
				}
			}
		case map[string]any:
			addTOMLStrings(values, key+".", value)
		}
	}
}
