package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"go.yaml.in/yaml/v3"

	"github.com/nodeagent/nodeagent/internal/host/owned"
)

// Verify returns the parts of a configuration without effect on this machine as it is now: node-problem-detector files
// that are missing, broken, or have rules without effect, and programs that are missing or that users other than root
// can change. Each is reported as file:line: message. None of this keeps a configuration from being in force: such a
// file, rule or plugin disables only itself, and a program may be installed later.
func Verify(name string) error {
	name, data, err := Read(name)
	if err != nil {
		return err
	}
	c, err := Parse(name, data)
	if err != nil {
		return err
	}
	var tree yaml.Node
	if err := yaml.Unmarshal(data, &tree); err != nil {
		return inFile(name, err)
	}
	var problems []error
	for i, p := range c.Plugins {
		if err := owned.Program(p.Path); err != nil {
			at := line(&tree, []string{"plugins", strconv.Itoa(i), "path"})
			problems = append(problems, fmt.Errorf("%s:%d: plugins.%d.path: %s is not run: %w", name, at, i, p.Path, err))
		}
	}
	s := c.NodeProblemDetector
	for i, pattern := range s.Files {
		if err := anyFile(pattern); err != nil {
			at := line(&tree, []string{"nodeProblemDetector", "files", strconv.Itoa(i)})
			problems = append(problems, fmt.Errorf("%s:%d: nodeProblemDetector.files.%d: it is not run: %w", name, at, i, err))
		}
	}
	monitors := ReadMonitors(s)
	for _, err := range monitors.Broken {
		if !errors.Is(err, fs.ErrNotExist) { // reported above
			problems = append(problems, err)
		}
	}
	for _, file := range monitors.Files {
		problems = append(problems, file.Verify(s, owned.Program, isFile)...)
	}
	return errors.Join(problems...)
}

// anyFile returns an error if no file has the name, or matches the pattern.
func anyFile(pattern string) error {
	if !hasWildcard(pattern) {
		_, err := os.Stat(pattern)
		return err
	}
	if found, err := filepath.Glob(pattern); err == nil && len(found) == 0 { // a malformed pattern is reported with the files
		return fmt.Errorf("%s: %w", pattern, errNoMatch)
	}
	return nil
}

var errNoMatch = errors.New("no file matches")

// isFile returns an error unless the name is that of a regular file. It does not open the file.
func isFile(name string) error {
	stat, err := os.Stat(name)
	if err == nil && !stat.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", name)
	}
	return err
}
