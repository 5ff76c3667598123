package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent"
	"github.com/nodeagent/nodeagent/cmd/nodeagent/config"
	"github.com/nodeagent/nodeagent/pkg/inspect/bundle"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
)

// inspectView says which part of an inspection to show, and its source and destination.
type inspectView struct {
	all, wide    bool
	explain      string // an object
	record, from string // files
	anonymous    bool
}

func (v *inspectView) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.BoolVarP(&v.all, "all", "a", false, "also list live objects and those that belong to no pod")
	flags.BoolVarP(&v.wide, "wide", "w", false, "list each object, with whole IDs")
	flags.StringVar(&v.explain, "explain", "", "print all that is known about one `object`: KIND/ID, or a part of its ID")
	flags.StringVar(&v.record, "record", "", "also write the evidence to this new `file`")
	flags.StringVar(&v.from, "from", "", "evaluate the evidence of this `file` instead of this node")
	flags.BoolVar(&v.anonymous, "anonymous", false, "with --record: replace names of pods, namespaces and nodes")
}

func (v *inspectView) run(cmd *cobra.Command, o *options, kinds []object.Kind) error {
	switch {
	case v.record != "" && v.from != "":
		return errors.New("--record and --from exclude each other")
	case v.anonymous && v.record == "":
		return errors.New("--anonymous is for --record")
	case len(kinds) > 0 && (v.record != "" || v.explain != ""):
		return errors.New("--record and --explain inspect all kinds: name none")
	}
	if _, err := os.Lstat(v.record); v.record != "" && err == nil {
		return fmt.Errorf("%s exists already and is not overwritten", v.record) // before the inspection is made
	}
	i, err := v.inspection(cmd.Context(), o, kinds)
	if err != nil {
		return err
	}
	if v.record != "" {
		if err := v.save(cmd, i); err != nil {
			return err
		}
	}
	if v.explain != "" {
		return i.explain(cmd.OutOrStdout(), o, v.explain)
	}
	return o.answer(cmd.OutOrStdout(), complete(i.report), func(w io.Writer) error {
		return printReport(w, i.report, i.settings, v.all, v.all || v.wide)
	}, inspectExit(i.report))
}

// inspection is one inspection, of this node or from a file.
type inspection struct {
	report   object.Report
	bundle   *bundle.Bundle // nil if discovery hangs
	settings release.Settings
}

func (v *inspectView) inspection(ctx context.Context, o *options, kinds []object.Kind) (inspection, error) {
	if v.from != "" {
		return readInspection(v.from, kinds)
	}
	return inspectNode(ctx, o.load, kinds)
}

// inspectNode inspects this node.
func inspectNode(ctx context.Context, load func(context.Context) (config.Config, error),
	kinds []object.Kind) (inspection, error) {
	var opened atomic.Pointer[openBench] // a hanging call may still open it
	report, err := inspectOnce(ctx, func(ctx context.Context) (bench, error) {
		b, err := newOpenBench(ctx, load)
		if err != nil {
			return nil, err // not an interface that holds a nil *Bench
		}
		opened.Store(b)
		return b, nil
	}, kinds)
	i := inspection{report: report, settings: release.Defaults()}
	if b := opened.Load(); b != nil && err == nil && b.passed.Load() {
		recorded := b.Bundle()
		i.bundle, i.settings = &recorded, b.settings
	}
	return i, err
}

// openBench is a bench with the settings that it was opened with.
type openBench struct {
	*agent.Bench
	settings release.Settings
	passed   atomic.Bool
}

func newOpenBench(ctx context.Context, load func(context.Context) (config.Config, error)) (*openBench, error) {
	cfg, err := load(ctx)
	if err != nil {
		return nil, err
	}
	b, err := agent.OpenBench(ctx, cfg, quiet())
	if err != nil {
		return nil, err
	}
	return &openBench{Bench: b, settings: cfg.Remediate}, nil
}

// Pass makes one pass.
func (b *openBench) Pass(ctx context.Context, kinds ...object.Kind) (object.Report, error) {
	report, err := b.Bench.Pass(ctx, kinds...)
	b.passed.Store(true)
	return report, err
}

// readInspection evaluates a recorded inspection. It shows releases as if all of them were switched on.
func readInspection(file string, kinds []object.Kind) (inspection, error) {
	b, err := bundle.Read(file)
	if err != nil {
		return inspection{}, err
	}
	report, _ := b.Evidence.Evaluate()
	if len(kinds) > 0 {
		report.Objects = slices.DeleteFunc(report.Objects, func(a object.Assessment) bool {
			return !slices.Contains(kinds, a.Kind)
		})
	}
	settings := release.Defaults()
	settings.Mode, settings.Attended = release.On, true
	for _, cut := range b.Cut {
		report.Errors = append(report.Errors, object.Failure{What: "file", Error: "the file was cut: it lacks " + cut})
	}
	return inspection{report, &b, settings}, nil
}

// save writes the evidence to a new file.
func (v *inspectView) save(cmd *cobra.Command, i inspection) error {
	data, err := i.encode(v.anonymous)
	if err != nil {
		return err
	}
	written, err := bundle.Decode(bytes.NewReader(data)) // a bundle that cannot be read again is not written
	if err != nil {
		return fmt.Errorf("record the inspection: %w", err)
	}
	if err := bundle.WriteNew(v.record, data); err != nil {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "recorded %d objects in %s; nodeagent inspect --from %s shows them\n",
		len(written.Evidence.Objects), v.record, v.record)
	for _, cut := range written.Cut {
		fmt.Fprintf(cmd.ErrOrStderr(), "the record was too large and was cut: %s\n", cut)
	}
	return nil
}

// encode returns the evidence in the form of a file.
func (i inspection) encode(anonymous bool) ([]byte, error) {
	if i.bundle == nil {
		return nil, fmt.Errorf("no evidence to record: %s", i.report.Errors[0].Error)
	}
	recorded := *i.bundle
	recorded.Anonymous = anonymous
	return recorded.Encode(bundle.MaxFile)
}
