package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/pkg/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/cluster"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/jetstream"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/sqlite"
)

// leaveLimit is how long the replica with the filled stream waits for the others to notice.
const leaveLimit = 30 * time.Second

func newMigrate(o *options) *cobra.Command {
	var replicas string
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Move a SQLite journal into NATS JetStream",
		Long: `Move the SQLite journal of the center's directory into the journal that replicas keep together. Offsets and
the journal's UUID stay, so consumers continue where they are. Stop the center first. Run the command for all three replicas
at the same time: the one whose directory has the journal sends it, the others take part until it is sent. If it was
interrupted, run it again. At the end it compares both journals by count and hash, and renames the SQLite journal in the
directory to "journal.migrated".`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.migrate(cmd, replicas) },
	}
	cmd.Flags().StringVar(&replicas, "replicas", "", "the same file as for \"serve\"")
	_ = cmd.MarkFlagRequired("replicas")
	return cmd
}

func (o *options) migrate(cmd *cobra.Command, replicas string) error {
	ctx, log := cmd.Context(), slog.New(slog.NewTextHandler(os.Stderr, nil))
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return err
	}
	if !eventcenter.HasJournal(dir) {
		_, node, err := joinReplicas(replicas, dir, log)
		if err != nil {
			return fmt.Errorf("--replicas %s: %w", replicas, err)
		}
		defer node.Close()
		return jetstream.AwaitTakeOver(ctx, node.Conn, log)
	}
	var taken jetstream.Taken
	err = eventcenter.Migrate(ctx, dir, log, func(from *sqlite.Store) error {
		_, node, err := joinReplicas(replicas, dir, log)
		if err != nil {
			return fmt.Errorf("--replicas %s: %w", replicas, err)
		}
		defer node.Close()
		if taken, err = jetstream.TakeOver(ctx, node.Conn, cluster.Peers, from, log); err != nil {
			return err
		}
		limited, cancel := context.WithTimeout(ctx, leaveLimit)
		defer cancel()
		jetstream.AwaitOthers(limited, node.Conn)
		return nil
	})
	if err != nil {
		return err
	}
	return o.Print(cmd, "migrate", taken, nil)
}
