package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Filter selects verdicts.
type Filter struct {
	Namespace string   // empty: all
	Nodes     []string // none: all
	Reason    string   // of misses; empty: all
}

// judged returns the condition of the acts judged after a time and until another one, and its arguments.
func (f Filter) judged(after, until time.Time) (where string, args []any) {
	return f.narrow(` WHERE at > $1 AND at <= $2`, after.UnixMilli(), until.UnixMilli())
}

// narrow adds the filter to a condition.
func (f Filter) narrow(where string, args ...any) (string, []any) {
	in := func(column string, values ...string) {
		places := make([]string, len(values))
		for i, value := range values {
			args = append(args, value)
			places[i] = "$" + strconv.Itoa(len(args))
		}
		where += " AND " + column + " IN (" + strings.Join(places, ", ") + ")"
	}
	if f.Namespace != "" {
		in("namespace", f.Namespace)
	}
	if f.Reason != "" {
		in("reason", f.Reason)
	}
	if len(f.Nodes) > 0 {
		in("node", f.Nodes...)
	}
	return where, args
}

// each visits the rows of a query in several files. SQLite and PostgreSQL both number parameters as $1.
func each(ctx context.Context, dbs []*sql.DB, query string, args []any, visit func(*sql.Rows) error) error {
	for _, db := range dbs {
		rows, err := db.QueryContext(ctx, query, args...)
		if err != nil {
			return err
		}
		for rows.Next() {
			if err := visit(rows); err != nil {
				return errors.Join(err, rows.Close())
			}
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			return err
		}
	}
	return nil
}

// document is a value stored as JSON. An empty text leaves it unchanged.
type document struct{ of any }

// Value encodes the document.
func (d document) Value() (driver.Value, error) {
	text, err := json.Marshal(d.of)
	return string(text), err
}

// Scan decodes the document.
func (d document) Scan(stored any) error {
	text, ok := stored.(string)
	if !ok {
		return fmt.Errorf("a stored document is %T, not a text", stored)
	}
	if text == "" {
		return nil
	}
	return json.Unmarshal([]byte(text), d.of)
}

// moment is a time stored in milliseconds. It is zero if there is none.
type moment struct{ time.Time }

// Value encodes the time.
func (m moment) Value() (driver.Value, error) { return m.UnixMilli(), nil }

// Scan decodes the time.
func (m *moment) Scan(stored any) error {
	switch ms := stored.(type) {
	case nil:
	case int64:
		m.Time = time.UnixMilli(ms).UTC()
	default:
		return fmt.Errorf("a stored time is %T, not a number", stored)
	}
	return nil
}
