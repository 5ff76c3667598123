package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/pkg/detect/checks"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog"
	"github.com/nodeagent/nodeagent/pkg/detect/plugin"
)

// ownProblems returns the conflicts among the user's rules and plugins.
func (c Config) ownProblems() []problem {
	var problems []problem
	if err := c.joinRules(); err != nil {
		at := append([]string{"rules", strconv.Itoa(err.Index)}, strings.Split(err.Key, ".")...)
		problems = append(problems, problem{at, err.What})
	}
	for i, p := range c.Plugins {
		if slices.ContainsFunc(c.Plugins[:i], func(o plugin.Settings) bool { return o.Name == p.Name }) {
			problems = append(problems, problem{[]string{"plugins", strconv.Itoa(i), "name"},
				fmt.Sprintf("there are two plugins called %q", p.Name)})
		}
	}
	return problems
}

// joinRules adds the user's rules to the kernel log's table.
func (c Config) joinRules() *kernellog.CustomRuleError {
	s := checks.SettingsOf[kernellog.Settings](c.Checks, "kernel-log")
	if s == nil || len(c.Rules) == 0 {
		return nil
	}
	rules, err := kernellog.CustomRules(c.Rules, s.Settings.Table())
	s.Settings.Custom = rules
	return err
}
