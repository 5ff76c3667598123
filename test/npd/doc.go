// Package npd holds tests that run node-problem-detector's own code beside the agent's on the same files, lines and
// plugins. It is a separate module: of node-problem-detector the agent itself depends only on the configuration types.
package npd
