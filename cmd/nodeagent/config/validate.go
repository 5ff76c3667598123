package config

import (
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/setting"
	"github.com/nodeagent/nodeagent/pkg/detect/checks"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog"
	"github.com/nodeagent/nodeagent/pkg/detect/plugin"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Validate returns the invalid settings that c has beside its parts.
func (c Config) Validate() error {
	wrong := setting.Mistakes{}
	wrong.Check("stateDir", filepath.IsAbs(c.StateDir), "%q is not an absolute path", c.StateDir)
	wrong.Check("socket", filepath.IsAbs(c.Socket), "%q is not an absolute path", c.Socket)
	return wrong.OrNil()
}

// mistakes returns the invalid values of c and of all its parts. Rules for a type hold everywhere: durations have a
// unit and are not negative, counts are not negative, severities are known ones. Each part checks the rest with its own
// Validate, whose message about a value replaces all others.
func (c Config) mistakes() setting.Mistakes {
	wrong := setting.Mistakes{}
	walk(reflect.ValueOf(c), "", wrong)
	if len(wrong) == 0 { // rules and plugins that are valid alone may still conflict
		wrong.Add("rules", c.joinRules())
		for i, p := range c.Plugins {
			same := func(o plugin.Settings) bool { return o.Name == p.Name }
			wrong.Check(fmt.Sprintf("plugins.%d.name", i), !slices.ContainsFunc(c.Plugins[:i], same),
				"there are two plugins called %q", p.Name)
		}
	}
	return wrong
}

// joinRules adds the user's rules to the kernel log's table.
func (c Config) joinRules() error {
	s := checks.SettingsOf[kernellog.Settings](c.Checks, "kernel-log")
	if s == nil || len(c.Rules) == 0 {
		return nil
	}
	rules, err := kernellog.CustomRules(c.Rules, s.Settings.Table())
	s.Settings.Custom = rules
	return err
}

// walk collects the mistakes in a value and everything below it.
func walk(v reflect.Value, key string, wrong setting.Mistakes) {
	if s, ok := v.Interface().(interface{ Validate() error }); ok {
		wrong.Add(key, s.Validate())
	}
	below := func(v reflect.Value, name string) { walk(v, strings.TrimPrefix(key+"."+name, "."), wrong) }
	switch value := v.Interface().(type) {
	case time.Duration:
		wrong.Check(key, value == 0 || value >= time.Millisecond,
			"%d: a duration is positive and carries its unit, such as 30s or 10m", int64(value))
		return
	case finding.Severity:
		wrong.Check(key, value == "" || value.Valid(), "%q: a severity is fatal, warning or info", value)
		return
	}
	switch v.Kind() {
	case reflect.Interface, reflect.Pointer:
		if !v.IsNil() {
			walk(v.Elem(), key, wrong)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			field := v.Type().Field(i)
			name, options, _ := strings.Cut(field.Tag.Get("yaml"), ",")
			switch {
			case !field.IsExported() || name == "-":
			case options == "inline":
				walk(v.Field(i), key, wrong)
			default:
				below(v.Field(i), name)
			}
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			below(v.MapIndex(key), key.String())
		}
	case reflect.Slice:
		for i := range v.Len() {
			below(v.Index(i), strconv.Itoa(i))
		}
	case reflect.Int, reflect.Int64:
		wrong.Check(key, v.Int() >= 0, "%d: must not be negative", v.Int())
	case reflect.Float64:
		wrong.Check(key, !(v.Float() < 0), "%v: must not be negative", v.Float())
	case reflect.String:
		path, isPath := strings.CutPrefix(key, "paths.")
		isPath = isPath && !slices.Contains([]string{"kubeletHealthz", "kubeletAPI", "cgroupDriver"}, path)
		wrong.Check(key, !isPath || v.String() == "" || filepath.IsAbs(v.String()), "%q is not an absolute path", v.String())
	}
}
