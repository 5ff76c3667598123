package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/test/harness"
)

const condition = "ReadonlyFilesystem"

// conditionColumns shows the conditions of the node in one table.
const conditionColumns = `jsonpath={range .status.conditions[*]}{.type}{"\t"}{.status}{"\t"}{.lastTransitionTime}{"\t"}{.reason}{"\n"}{end}`

func (s *stage) showConditions(ctx context.Context) {
	s.kubectl(ctx, "get", "node", s.lab.NodeName, "-o", conditionColumns)
}

func (s *stage) startAgent(ctx context.Context) error {
	s.title("3. The agent starts, with its own ServiceAccount")
	// A pod that lives on, as an object that must not be touched.
	if err := s.lab.RunPod(ctx, "default", "bystander", "sleep", "100000"); err != nil {
		return err
	}
	if err := s.agent.Start(ctx); err != nil {
		return err
	}
	err := harness.WaitFor(ctx, condition+" to be False", func() error {
		return s.conditionIs(ctx, "False")
	})
	s.showConditions(ctx)
	return err
}

func (s *stage) conditionIs(ctx context.Context, status string) error {
	c, err := s.agent.Condition(ctx, condition)
	if err == nil && c.Status != status {
		err = fmt.Errorf("it is %q", c.Status)
	}
	return err
}

func (s *stage) diskFails(ctx context.Context) error {
	s.title("4. A disk fails")
	disk, err := harness.NewDisk(ctx, s.agent.Dir)
	if err != nil {
		return err
	}
	s.disk = disk
	time.Sleep(2 * time.Second) // conditions are written once a second at most, and some have just been written
	s.printf("An ext4 filesystem on %s is mounted on %s, which the configuration names as needed (checks.filesystem-readonly.needed): "+
		"it is fatal although no pod uses it. Now the kernel finds an error in it.", disk.Device, disk.Mount)
	began := time.Now()
	if err := disk.Fail(); err != nil {
		return err
	}
	if err := harness.WaitFor(ctx, condition+" to be True", func() error {
		return s.conditionIs(ctx, "True")
	}); err != nil {
		return err
	}
	s.printf("In the apiserver %s after the error:", time.Since(began).Round(time.Millisecond))
	s.showConditions(ctx)
	s.nodeagent(ctx, "check", "filesystem-readonly")
	return s.showEvents(ctx, "Filesystem")
}

// showEvents waits for an event about the node whose reason begins with prefix.
func (s *stage) showEvents(ctx context.Context, prefix string) error {
	err := harness.WaitFor(ctx, "an event "+prefix+"…", func() error {
		out, err := s.lab.Kubectl(ctx, "get", "events", "-n", "default", "-o",
			`jsonpath={range .items[*]}{.source.component}/{.reason}{"\n"}{end}`)
		if err == nil && !slices.ContainsFunc(strings.Fields(string(out)), func(l string) bool {
			return strings.HasPrefix(l, "nodeagent/"+prefix)
		}) {
			err = fmt.Errorf("there are %q", strings.Fields(string(out)))
		}
		return err
	})
	s.kubectl(ctx, "get", "events", "-n", "default", "--field-selector", "source=nodeagent",
		"-o", "custom-columns=TYPE:.type,REASON:.reason,MESSAGE:.message")
	return err
}

func (s *stage) diskRepaired(ctx context.Context) error {
	s.title("5. The disk is repaired, the condition clears by itself")
	if err := s.disk.Unmount(); err != nil {
		return err
	}
	if err := s.disk.MountAgain(ctx); err != nil {
		return err
	}
	err := harness.WaitFor(ctx, condition+" to be False", func() error {
		return s.conditionIs(ctx, "False")
	})
	s.showConditions(ctx)
	if err != nil {
		return err
	}
	return s.disk.Remove(ctx)
}

func (s *stage) podLeavesThings(ctx context.Context) error {
	s.title("6. A deleted pod leaves things behind")
	victim, err := harness.NewVictim(ctx, s.lab, "victim")
	if err != nil {
		return err
	}
	s.victim = victim
	s.printf(
		"Pod default/victim (%s) runs. kubelet is stopped, the pod is force-deleted, its processes hang; kubelet comes back.", victim.UID)
	if err := victim.Abandon(ctx); err != nil {
		return err
	}
	if err := victim.WaitStuck(ctx); err != nil {
		return err
	}
	s.printf("kubelet could not clean up:")
	traces, err := victim.Traces(ctx)
	if err != nil {
		return err
	}
	for _, trace := range traces {
		s.printf("  %s", trace)
	}
	return s.awaitProof(ctx)
}

// awaitProof waits until the daemon has a proof, and shows its evidence.
func (s *stage) awaitProof(ctx context.Context) error {
	err := harness.WaitFor(ctx, "the finding PodLeftovers", func() error {
		status, err := s.agent.Status(ctx)
		if err != nil {
			return err
		}
		for _, f := range status.Findings {
			if f.Reason == "PodLeftovers" && f.Subject.UID == s.victim.UID {
				return nil
			}
		}
		return fmt.Errorf("findings are %+v", status.Findings)
	})
	if err != nil {
		s.nodeagent(ctx, "inspect")
		return err
	}
	s.nodeagent(ctx, "inspect")
	return s.showEvents(ctx, "PodLeftovers")
}

func (s *stage) clean(ctx context.Context) error {
	s.title("7. The plan, and the release")
	s.nodeagent(ctx, "clean")
	answer, err := s.nodeagent(ctx, "clean", "--yes")
	if err != nil {
		return err
	}
	if answer.Code != 0 {
		return fmt.Errorf("nodeagent clean --yes: exit code %d", answer.Code)
	}
	traces, err := s.victim.Traces(ctx)
	if err != nil {
		return err
	}
	if len(traces) > 0 {
		return fmt.Errorf("still there: %q", traces)
	}
	if err := s.victim.CheckCanary(); err != nil {
		return fmt.Errorf("user data was harmed: %w", err)
	}
	if _, err := s.lab.WaitPodRunning(ctx, "default", "bystander"); err != nil {
		return fmt.Errorf("a living pod was harmed: %w", err)
	}
	s.printf("\nNothing of the pod is left; its data on the host and the living pod are untouched.")
	err = harness.WaitFor(ctx, "the finding to clear", func() error {
		status, err := s.agent.Status(ctx)
		if err != nil {
			return err
		}
		for _, f := range status.Findings {
			if f.Check == "leftovers" {
				return fmt.Errorf("there is %+v", f)
			}
		}
		return nil
	})
	s.nodeagent(ctx, "status")
	return err
}
