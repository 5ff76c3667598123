package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxFile bounds a configuration file, a token, a certificate or a bundle of them, in bytes.
const maxFile = 1 << 20

// Load reads a configuration file over the defaults. With an empty name it reads DefaultFile, if that exists. It
// reports all mistakes at once, each with file and line.
func Load(name string) (Config, error) {
	name, data, err := Read(name)
	if err != nil {
		return Config{}, err
	}
	return Parse(name, data)
}

// Read returns the content of a configuration file, and its name. With an empty name it reads DefaultFile; if that does
// not exist the content is empty.
func Read(name string) (string, []byte, error) {
	optional := name == ""
	if optional {
		name = DefaultFile
	}
	data, err := ReadFile(name)
	if optional && errors.Is(err, fs.ErrNotExist) {
		return name, nil, nil
	}
	if err != nil {
		return name, nil, fmt.Errorf("configuration: %w", err)
	}
	return name, data, nil
}

// ReadFile reads a file of at most maxFile bytes.
func ReadFile(name string) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return readUpTo(name, file)
}

func readUpTo(name string, file io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("%s: larger than %d bytes", name, maxFile)
	}
	return data, err
}

// Parse reads a configuration over the defaults; errors contain name.
func Parse(name string, data []byte) (Config, error) {
	c := Default()
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	if err := decoder.Decode(&c); err != nil && !errors.Is(err, io.EOF) {
		return Config{}, inFile(name, err)
	}
	if err := decoder.Decode(new(any)); !errors.Is(err, io.EOF) {
		return Config{}, fmt.Errorf("%s: more than one document", name)
	}
	var tree yaml.Node
	if err := yaml.Unmarshal(data, &tree); err != nil {
		return Config{}, inFile(name, err)
	}
	wrong := c.mistakes()
	lines := map[string]int{}
	for key := range wrong {
		lines[key] = line(&tree, strings.Split(key, "."))
	}
	var problems []error
	for _, key := range slices.SortedFunc(maps.Keys(wrong), func(a, b string) int {
		return cmp.Or(cmp.Compare(lines[a], lines[b]), cmp.Compare(a, b))
	}) {
		problems = append(problems, fmt.Errorf("%s:%d: %s: %s", name, lines[key], key, wrong[key]))
	}
	return c, errors.Join(problems...)
}

var lineOfError = regexp.MustCompile(`^(?:yaml: )?line (\d+): (.*)$`)
var goType = regexp.MustCompile(`field (.+) not found in type \S+`)

// inFile formats yaml's errors as compilers do: file:line: message.
func inFile(name string, err error) error {
	lines := []string{strings.TrimPrefix(err.Error(), "yaml: ")}
	if many, ok := errors.AsType[*yaml.TypeError](err); ok {
		lines = many.Errors
	}
	var problems []error
	for _, l := range lines {
		l = goType.ReplaceAllString(l, `unknown key "$1"`)
		if m := lineOfError.FindStringSubmatch(l); m != nil {
			problems = append(problems, fmt.Errorf("%s:%s: %s", name, m[1], m[2]))
		} else {
			problems = append(problems, fmt.Errorf("%s: %s", name, l))
		}
	}
	return errors.Join(problems...)
}

// line returns the line of a key in the file, or of the nearest key above it.
func line(node *yaml.Node, path []string) int {
	if node.Kind == yaml.DocumentNode && len(node.Content) > 0 {
		return line(node.Content[0], path)
	}
	if len(path) == 0 {
		return node.Line
	}
	if node.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(node.Content); i += 2 {
			if node.Content[i].Value == path[0] {
				return max(node.Content[i].Line, line(node.Content[i+1], path[1:]))
			}
		}
	}
	if i, err := strconv.Atoi(path[0]); err == nil && node.Kind == yaml.SequenceNode && i < len(node.Content) {
		return max(node.Content[i].Line, line(node.Content[i], path[1:]))
	}
	return 0
}
