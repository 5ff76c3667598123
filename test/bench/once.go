package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/test/harness"
)

// wholeCheck measures "nodeagent check" with everything on, as a person calls it.
func (b *bench) wholeCheck(ctx context.Context) error {
	logf("timing nodeagent check")
	const times = 10
	var cpu, wall []time.Duration
	for range times {
		answer, err := b.agent.CLI(ctx, "check")
		if err != nil {
			return err
		}
		cpu, wall = append(cpu, answer.CPU), append(wall, answer.Wall)
	}
	b.rows = append(b.rows,
		row{"check, everything on: CPU of the command, its children's too", spread(cpu), "–", "150 ms"},
		row{"check: wall time", spread(wall), "–", "500 ms"})
	return nil
}

// inspection measures the cost of one inspection of many pods, and that a quiet node causes no traffic.
func (b *bench) inspection(ctx context.Context) error {
	if err := b.fillNode(ctx, slices.Max(b.pods)); err != nil {
		return err
	}
	logf("inspecting %d pods", b.running)
	var inspected harness.Inspected
	var cpu, wall []time.Duration
	memory, without := 0, 0
	if answer, err := b.agent.CLI(ctx, "version"); err == nil {
		without = answer.MaxRSS
	}
	if _, err := b.agent.JSON(ctx, &inspected, "inspect"); err != nil {
		return err
	}
	for range 5 {
		answer, err := b.agent.CLI(ctx, "inspect")
		if err != nil {
			return err
		}
		cpu, wall, memory = append(cpu, answer.CPU), append(wall, answer.Wall), max(memory, answer.MaxRSS)
	}
	b.rows = append(b.rows,
		row{fmt.Sprintf("inspect, %d pods, %d objects: CPU of the whole command", b.running, len(inspected.Objects)),
			spread(cpu), "–", "250 ms"},
		row{"inspect: wall time", spread(wall), "–", "1 s"},
		row{"inspect: resident at most; of it more than \"nodeagent version\"", mib(memory) + "; " +
			mib(memory-without), "–", ""},
		row{"inspect: suspicious objects → apiserver asked", fmt.Sprintf("%d → %s", inspected.Suspicious(),
			inspected.Gate("apiserver-heard")), "–", "not asked"})
	return nil
}
