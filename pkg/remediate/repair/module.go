package repair

import (
	"context"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

func loadModule() Action {
	return Action{
		Name:    "load-module",
		Summary: "load a kernel module that the configuration names (checks.kernel-modules.modules)",
		Answers: []Answer{{"kernel-modules", []string{"KernelModuleMissing"}}},
		Of:      namesModule,
		Needs: []string{"the configuration names the module", "systemd 245 or later, whose modprobe@.service is not masked",
			"the kernel still loads modules (kernel.modules_disabled), and its own are installed"},
		Does:  []string{"have systemd start modprobe@NAME.service: the agent itself has no right to load modules"},
		Never: []string{"unloads a module, or passes it options"},
		Examine: func(ctx context.Context, t Tools, f finding.Finding) (Job, error) {
			name := f.Subject.Name
			if !namesModule(t.Settings, f) {
				return Job{}, refuse("the configuration does not name %s", name)
			}
			if err := t.Mutator.MayLoadModule(ctx, name); err != nil {
				return Job{}, err
			}
			return Job{
				Does: "load kernel module " + name + " (modprobe@" + name + ".service)",
				Do:   func(ctx context.Context) (string, error) { return "", t.Mutator.LoadModule(ctx, name) },
			}, nil
		},
	}
}

// namesModule reports whether the configuration names the module of a finding.
func namesModule(s Settings, f finding.Finding) bool {
	return slices.ContainsFunc(s.Modules, func(named string) bool {
		return strings.ReplaceAll(named, "-", "_") == f.Subject.Name
	})
}
