// Package fuzz holds the fuzz targets that drive the whole broker.
package fuzz
