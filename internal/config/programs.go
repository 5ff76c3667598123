package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"

	"go.yaml.in/yaml/v3"

	"github.com/nodeagent/nodeagent/internal/host/owned"
)

// Programs returns which programs of plugins would not be run, because other users than root can change them:
// file:line: what. It is asked of the machine as it is now and keeps no configuration from being in force: such a
// plugin costs only itself. A program that is not there may come later.
func Programs(name string) error {
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
		if err := owned.Program(p.Path); errors.Is(err, owned.ErrOthers) {
			at := line(&tree, []string{"plugins", strconv.Itoa(i), "path"})
			problems = append(problems, fmt.Errorf("%s:%d: plugins.%d.path: it is not run: %w", name, at, i, err))
		}
	}
	for _, file := range ReadMonitors(c.NodeProblemDetector).Files {
		if file.Plugin == nil {
			continue
		}
		for i, r := range file.Plugin.Rules {
			if !filepath.IsAbs(r.Path) {
				continue // where it is found is decided when it is run
			}
			if err := owned.Program(r.Path); errors.Is(err, owned.ErrOthers) {
				problems = append(problems, fmt.Errorf("%s: rules.%d.path: it is not run: %w", file.Name, i, err))
			}
		}
	}
	return errors.Join(problems...)
}
