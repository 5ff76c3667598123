package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/pkg/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/cluster"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/cluster/kv"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/deliver"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/web/command"
	"github.com/nodeagent/nodeagent/pkg/web/control"
	"github.com/nodeagent/nodeagent/pkg/web/control/sqlite"
	"github.com/nodeagent/nodeagent/pkg/web/settings"
)

// deliveries are the webhooks to which this center, or its worker replica, sends events.
type deliveries struct {
	deliver.Config
	manager atomic.Pointer[deliver.Manager] // nil while another replica is the worker
	failed  atomic.Pointer[string]          // why no events are delivered; nil: no problem
}

// openDeliveries reads the settings. A single center loads the registrations now; a replica does so when it becomes the
// worker. Without settings it delivers no events.
func (s *serveOptions) openDeliveries(ctx context.Context, center *eventcenter.Center, r *replica) (*deliveries, error) {
	var err error
	d := &deliveries{Config: deliver.Config{Journal: center.Journal, Log: center.Log, Version: Version}}
	if s.subscriptions != "" {
		if d.Settings, err = settings.File(s.subscriptions, deliver.Read); err != nil {
			return nil, fmt.Errorf("--subscriptions %s: %w", s.subscriptions, err)
		}
	}
	if r.node != nil {
		d.Store, err = kv.Open(r.node.Conn, cluster.Peers)
		return d, err
	}
	// A damaged store must not keep the center from accepting events, which does not need the store.
	d.Store, err = sqlite.Open(ctx, filepath.Join(center.Dir, eventcenter.ControlFile))
	if errors.Is(err, sqlite.ErrFormat) {
		return nil, err
	}
	if err != nil {
		d.Store = control.Broken{Err: fmt.Errorf("%s: %w", eventcenter.ControlFile, err)}
	}
	if err = d.open(ctx); err != nil {
		d.fail(err)
	}
	return d, nil
}

func (d *deliveries) open(ctx context.Context) error {
	manager, err := deliver.Open(ctx, d.Config)
	if err == nil {
		d.manager.Store(manager)
		d.failed.Store(nil)
	}
	return err
}

// fail records why no events are delivered, and logs changes.
func (d *deliveries) fail(err error) {
	text := "the center delivers no events, and people cannot sign in: " + err.Error()
	if before := d.failed.Swap(&text); before == nil || *before != text {
		d.Log.Error("open control store failed: accepting events, delivering none", "err", err)
	}
}

// problem returns why no events are delivered; empty: no problem.
func (d *deliveries) problem() string {
	if text := d.failed.Load(); text != nil {
		return *text
	}
	return ""
}

// run delivers until ctx ends.
func (d *deliveries) run(ctx context.Context) {
	defer func() {
		d.manager.Store(nil)
		d.failed.Store(nil) // another replica delivers now
	}()
	for d.manager.Load() == nil {
		err := d.open(ctx)
		if err == nil {
			break
		}
		d.fail(err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(5 * time.Second):
		}
	}
	_ = d.manager.Load().Run(ctx) // logs errors
}

func newSubscriptions(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "subscriptions",
		Short: "List, add, remove, pause and resume the webhooks and NATS subjects that receive events",
		Args:  cobra.NoArgs,
	}
	change := func(method, action string) func(*cobra.Command, []string) error {
		return func(cmd *cobra.Command, args []string) error {
			return o.do(cmd, method, "/v1/subscriptions/"+url.PathEscape(args[0])+action, nil)
		}
	}
	cmd.AddCommand(newSubscriptionsAdd(o),
		verb("list", "List subscriptions, their positions and their problems", 0, func(cmd *cobra.Command, _ []string) error {
			return show(o, cmd, "/v1/subscriptions", "subscriptions", func(answer api.SubscriptionList) bool {
				return slices.ContainsFunc(answer.Subscriptions, func(s deliver.Status) bool {
					return s.Paused != "" || s.Problem != "" || s.DeadLetters > 0
				})
			})
		}),
		verb("audit", "List who changed subscriptions, the newest first", 0, func(cmd *cobra.Command, _ []string) error {
			return show(o, cmd, "/v1/audit?limit=1000", "audit", func(api.AuditList) bool { return false })
		}),
		verb("remove NAME", "Remove a subscription, with its cursor and its dead letters", 1, change(http.MethodDelete, "")),
		verb("pause NAME", "Stop sending events; the position is kept", 1, change(http.MethodPost, "/pause")),
		verb("resume NAME", "Continue at its position, after the target has confirmed again that it wants events", 1,
			change(http.MethodPost, "/resume")))
	return cmd
}

func newSubscriptionsAdd(o *options) *cobra.Command {
	var one deliver.Subscription
	cmd := &cobra.Command{
		Use:   "add NAME --url URL",
		Short: "Send events to a webhook",
		Long: `Send events to a webhook, which must be at or below one of the targets in the center's settings (serve
--subscriptions). The subscription begins with new events, or after an offset.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			one.Name, one.Filter = args[0], journal.Filter{}
			for _, field := range journal.Fields() {
				if values := command.Parameters(cmd)[string(field)]; len(values) > 0 {
					one.Filter[field] = values
				}
			}
			body, err := json.Marshal(one)
			if err != nil {
				return err
			}
			return o.do(cmd, http.MethodPost, "/v1/subscriptions", bytes.NewReader(body))
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&one.URL, "url", "", "target: https://HOST/PATH, or nats://HOST/SUBJECT")
	flags.StringVar(&one.CEL, "cel", "", "only events for which this CEL expression is true")
	flags.StringVar((*string)(&one.Mode), "mode", "", "batch (default), structured or binary; a simpler one if the "+
		"target does not accept it")
	flags.StringVar(&one.After, "after", "", "begin after this offset (default: the newest)")
	addFilter(flags, "cluster", "node", "type", "severity", "check", "reason")
	_ = cmd.MarkFlagRequired("url") // the flag exists
	return cmd
}

func newDeadLetters(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dead-letters",
		Short: "List, show, replay and delete events that a subscriber did not accept",
		Args:  cobra.NoArgs,
	}
	path := func(args []string) string {
		return "/v1/dead-letters/" + url.PathEscape(args[0]) + "/" + url.PathEscape(args[1])
	}
	change := func(method string) func(*cobra.Command, []string) error {
		return func(cmd *cobra.Command, args []string) error { return o.do(cmd, method, path(args), nil) }
	}
	var subscription string
	list := verb("list", "List dead letters, the oldest first", 0, func(cmd *cobra.Command, _ []string) error {
		all := "/v1/dead-letters?" + url.Values{"subscription": {subscription}}.Encode()
		return show(o, cmd, all, "dead letters", func(answer api.DeadLetterList) bool { return len(answer.DeadLetters) > 0 })
	})
	list.Flags().StringVar(&subscription, "subscription", "", "only dead letters of this subscription")
	const of = " SUBSCRIPTION ID"
	cmd.AddCommand(list,
		verb("show"+of, "Print a dead letter with its event, as JSON", 2, func(cmd *cobra.Command, args []string) error {
			return show(o, cmd, path(args), "dead letter", func(json.RawMessage) bool { return false })
		}),
		verb("replay"+of, "Send a dead letter again; it is removed once delivered", 2, change(http.MethodPost)),
		verb("delete"+of, "Delete a dead letter", 2, change(http.MethodDelete)))
	return cmd
}

func newReplay(o *options) *cobra.Command {
	var name, after string
	cmd := &cobra.Command{
		Use:   "replay --subscription NAME --after OFFSET",
		Short: "Restart a subscription after an offset",
		Long: `Restart a subscription after an offset, which may be before or after its position. Events that it had already are sent
again. A new subscriber can begin after any offset too: subscriptions add --after.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path := "/v1/subscriptions/" + url.PathEscape(name) + "/replay?" + url.Values{"after": {after}}.Encode()
			return o.do(cmd, http.MethodPost, path, nil)
		},
	}
	cmd.Flags().StringVar(&name, "subscription", "", "name of the subscription")
	cmd.Flags().StringVar(&after, "after", "", "begin after this offset")
	_, _ = cmd.MarkFlagRequired("subscription"), cmd.MarkFlagRequired("after") // the flags exist
	return cmd
}
