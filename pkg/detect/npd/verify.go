package npd

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"

	"k8s.io/node-problem-detector/pkg/types"
)

// Verify returns the errors that make rules of a file ineffective, each with its position; it does not change which
// rules are run. program returns why a program may not be run, log why a log file cannot be read.
func (f *File) Verify(s Settings, program, log func(name string) error) []error {
	if f.Kind == StatsMonitor {
		return nil // see Monitors.Ignored of the configuration
	}
	problems := f.unknownKeys()
	switch f.Kind {
	case LogMonitor:
		problems = slices.Concat(problems, f.sameConditions(f.Log.DefaultConditions), f.verifyLog(s, log))
	case PluginMonitor:
		problems = slices.Concat(problems, f.sameConditions(f.Plugin.DefaultConditions), f.verifyPlugin(s, program))
	}
	return problems
}

// sameConditions returns an error for each condition that the file declares again.
func (f *File) sameConditions(conditions []types.Condition) (problems []error) {
	for i, c := range conditions {
		if hasCondition(conditions[:i], c.Type) {
			problems = append(problems, f.at(problem{fmt.Sprintf("%q is declared twice: the first counts", c.Type),
				steps("conditions", i, "type")}))
		}
	}
	return problems
}

func (f *File) verifyLog(s Settings, log func(name string) error) (problems []error) {
	if f.Log.Plugin == filelogPlugin {
		if err := log(f.Log.LogPath); err != nil {
			problems = append(problems, f.at(problem{fmt.Sprintf("the log is not read: %v", err), steps("logPath")}))
		}
	}
	for i, r := range f.Log.Rules {
		if r.Pattern == "" {
			problems = append(problems, f.at(problem{"the rule has no pattern: each line matches", steps("rules", i)}))
		}
		if err := f.typeProblem(i, r.Type); err != nil {
			problems = append(problems, err)
		} else if r.Type != types.Temp && !hasCondition(f.Log.DefaultConditions, r.Condition) {
			problems = append(problems, f.at(problem{fmt.Sprintf("the rule has no effect: the file has no condition %q", r.Condition),
				steps("rules", i, "condition")}))
		}
	}
	if _, err := newLogMonitor(*f, "", s); err != nil {
		problems = append(problems, f.at(err))
	}
	return problems
}

func (f *File) verifyPlugin(s Settings, program func(name string) error) (problems []error) {
	for i, r := range f.Plugin.Rules {
		if err := f.typeProblem(i, r.Type); err != nil {
			problems = append(problems, err)
		}
		switch base := path.Base(r.Path); {
		case base == "health-checker" && !s.RunHealthChecker, base == "log-counter":
			continue // the agent does not run them
		}
		if err := verifyProgram(f.programs(r.Path, s), program); err != nil {
			problems = append(problems, f.at(problem{fmt.Sprintf("%s is not run: %v", r.Path, err), steps("rules", i, "path")}))
		}
	}
	if _, err := newPluginMonitor(*f, "", s, native{}); err != nil {
		problems = append(problems, err)
	}
	return problems
}

// typeProblem is the error of a rule that is neither temporary nor permanent.
func (f *File) typeProblem(i int, kind types.Type) error {
	if kind == types.Temp || kind == types.Perm {
		return nil
	}
	return f.at(problem{fmt.Sprintf("%q is no type of a rule: temporary and permanent are", kind), steps("rules", i, "type")})
}

// programs are the candidate paths of a plugin, in order.
func (f *File) programs(name string, s Settings) []string {
	if filepath.IsAbs(name) {
		return []string{name}
	}
	if s.Directory != "" {
		return []string{filepath.Join(s.Directory, name)}
	}
	folder := filepath.Dir(f.Name)
	return []string{filepath.Join(folder, name), filepath.Join(filepath.Dir(folder), name)}
}

// verifyProgram returns nil if one of the names is a program that may be run, otherwise the reason.
func verifyProgram(names []string, program func(name string) error) error {
	var all []error
	for _, name := range names {
		err := program(name)
		if err == nil {
			return nil
		}
		all = append(all, err)
	}
	return errors.Join(all...)
}
