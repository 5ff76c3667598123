package repair

import (
	"context"
	"fmt"
	"strings"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

func restoreSysctl() Action {
	return Action{
		Name:    "restore-sysctl",
		Summary: "set a kernel setting to the value that the configuration names (checks.sysctls.want)",
		Answers: []Answer{{"sysctls", []string{"SysctlDrift"}}},
		Of: func(s Settings, f finding.Finding) bool {
			_, named := s.Sysctls[f.Subject.Name]
			return named
		},
		Needs: []string{"the configuration names the setting and its value; a setting that only Kubernetes wants stays as it is",
			"the setting exists, has the value that the check found, and the agent may write it"},
		Does:    []string{"write the value to /proc/sys"},
		Never:   []string{"writes a setting that is not named, or a file that configures settings"},
		Examine: examineSysctl,
	}
}

func examineSysctl(_ context.Context, t Tools, f finding.Finding) (Job, error) {
	name := f.Subject.Name
	wanted, named := t.Settings.Sysctls[name]
	file := strings.TrimPrefix(t.Settings.SysctlFile(name), "/proc/sys/")
	switch {
	case !named:
		return Job{}, refuse("the configuration does not name %s", name)
	case file == "":
		return Job{}, refuse("%q is not the name of a setting", name)
	}
	if err := t.Mutator.MayWriteSysctl(file, wanted); err != nil {
		return Job{}, err
	}
	value, err := t.Host.Files.Text("/proc/sys/" + file)
	if err != nil {
		return Job{}, fmt.Errorf("value of %s: %w", name, err)
	}
	return Job{
		Does: fmt.Sprintf("set %s from %s to %s", name, value, wanted), Identity: map[string]string{"value": value},
		Do: func(context.Context) (string, error) { return "", t.Mutator.WriteSysctl(file, value, wanted) },
	}, nil
}
