// Package clustertest has tests of real clusters: processes of the real binary on
// this machine, under load, that are killed, stopped and wiped.
package clustertest
