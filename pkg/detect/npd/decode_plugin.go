package npd

import (
	"cmp"
	"fmt"

	"k8s.io/node-problem-detector/pkg/types"
)

const (
	// maxConcurrency bounds the plugins of one file that run at a time.
	maxConcurrency = 32
	// maxOutputLength is the limit of a plugin's output that is read.
	maxOutputLength = 4 << 10
)

func (f *File) decodePlugin() error {
	c := &PluginConfig{}
	if err := f.decodeInto(&c.CustomPluginConfig); err != nil {
		return err
	}
	if err := c.problem(); err != nil {
		return f.at(err)
	}
	f.Plugin = c
	return nil
}

// problem fills in the defaults and returns why c is invalid, or nil. The defaults are node-problem-detector's own; its
// validation is not used, because it accesses files, and rejects the whole file for one error.
func (c *PluginConfig) problem() error {
	if len(c.Rules) > maxRules {
		return problem{fmt.Sprintf("%d rules: at most %d are possible", len(c.Rules), maxRules), steps("rules")}
	}
	for i, r := range c.Rules {
		if r == nil {
			return problem{"a rule is missing", steps("rules", i)}
		}
		if r.TimeoutString != nil {
			if _, err := duration(*r.TimeoutString, 0, steps("rules", i, "timeout")); err != nil {
				return err
			}
		}
	}
	g := &c.PluginGlobalConfig
	for key, text := range map[string]*string{"invoke_interval": g.InvokeIntervalString, "timeout": g.TimeoutString} {
		if text == nil {
			continue
		}
		if err := checkPositive(*text, steps("pluginConfig", key)); err != nil {
			return err
		}
	}
	if err := c.ApplyConfiguration(); err != nil {
		return err
	}
	if n := *g.Concurrency; n < 1 || n > maxConcurrency {
		return problem{fmt.Sprintf("%d: must be from 1 to %d", n, maxConcurrency), steps("pluginConfig", "concurrency")}
	}
	if n := *g.MaxOutputLength; n < 0 {
		return problem{fmt.Sprintf("%d: must not be negative", n), steps("pluginConfig", "max_output_length")}
	}
	if err := conditionProblem(c.DefaultConditions); err != nil {
		return err
	}
	return c.ruleProblem()
}

func (c *PluginConfig) ruleProblem() error {
	for i, r := range c.Rules {
		r.Reason = cmp.Or(r.Reason, noReason)
		switch {
		case r.Path == "":
			return problem{"a rule needs the path of a plugin", steps("rules", i)}
		case r.Timeout != nil && *r.Timeout > *c.PluginGlobalConfig.Timeout:
			return problem{fmt.Sprintf("%s is longer than the timeout of the file, %s", r.Timeout,
				c.PluginGlobalConfig.Timeout), steps("rules", i, "timeout")}
		case r.Type == types.Perm && !hasCondition(c.DefaultConditions, r.Condition):
			return problem{fmt.Sprintf("the file has no condition %q", r.Condition), steps("rules", i, "condition")}
		}
	}
	return nil
}
