package host

import (
	"errors"
	"fmt"

	"github.com/pelletier/go-toml/v2"
)

// maxTOML bounds a configuration file, in bytes; maxTOMLDepth bounds the parts of a key, since nested keys are joined.
const (
	maxTOML      = 1 << 20
	maxTOMLDepth = 16
)

// ParseTOMLStrings returns the strings and arrays of strings of a TOML file by their full key, its parts joined by
// dots:
//
//	[plugins."io.containerd.grpc.v1.cri".cni]
//	  conf_dir = "/etc/cni/net.d"                  plugins.io.containerd.grpc.v1.cri.cni.conf_dir
//
// Values of other types are left out, and so are keys of more than maxTOMLDepth parts. For a file that is not TOML, the
// error names the line.
func ParseTOMLStrings(data []byte) (map[string][]string, error) {
	if len(data) > maxTOML {
		return nil, fmt.Errorf("larger than %d bytes", maxTOML)
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
	addTOMLStrings(values, "", tree, maxTOMLDepth)
	return values, nil
}

func addTOMLStrings(values map[string][]string, prefix string, table map[string]any, depth int) {
	if depth == 0 {
		return
	}
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
			addTOMLStrings(values, key+".", value, depth-1)
		}
	}
}
