package repair

import (
	"context"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

func restoreLoopback() Action {
	return Action{
		Name:    "restore-loopback",
		Summary: "set the loopback device up and give it back 127.0.0.1/8",
		Answers: []Answer{{"loopback", []string{"LoopbackDown", "LoopbackWithoutAddress"}}},
		Needs:   []string{"link 1 of the host is a loopback device", "the agent may change links (CAP_NET_ADMIN)"},
		Does:    []string{"add 127.0.0.1/8 to it unless it has it", "set it up"},
		Never:   []string{"touches another link, another address or a route"},
		Examine: func(_ context.Context, t Tools, _ finding.Finding) (Job, error) {
			if err := t.Mutator.MayRestoreLoopback(); err != nil {
				return Job{}, err
			}
			return Job{
				Does: "set lo up with 127.0.0.1/8",
				Do:   func(context.Context) (string, error) { return "", t.Mutator.RestoreLoopback() },
			}, nil
		},
	}
}
