package repair

import (
	"context"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

func resetFailedUnits() Action {
	return Action{
		Name:    "reset-failed-units",
		Summary: "make systemd forget a transient unit that has failed",
		Answers: []Answer{{"systemd-units", []string{"UnitFailed"}}},
		Of:      func(_ Settings, f finding.Finding) bool { return f.Facts["transient"] == "true" },
		Needs:   []string{"the unit is transient: a program created it, and no file could start it again", "it is still in state failed"},
		Does:    []string{"ResetFailedUnit over systemd's D-Bus"},
		Never:   []string{"resets a unit that has a file: an administrator must see its failure"},
		Examine: func(ctx context.Context, t Tools, f finding.Finding) (Job, error) {
			units, err := host.Ask(ctx, "systemd", t.Host.Systemd.Units)
			if err != nil {
				return Job{}, err
			}
			for _, u := range units.Failed {
				if u.Name != f.Subject.Name {
					continue
				}
				if !u.Transient {
					return Job{}, refuse("%s is not transient", u.Name)
				}
				return Job{
					Does: "forget that " + u.Name + " has failed",
					Do:   func(ctx context.Context) (string, error) { return "", t.Mutator.ResetFailedUnit(ctx, u.Name) },
				}, nil
			}
			return Job{}, refuse("%s has not failed", f.Subject.Name)
		},
	}
}
