//! stub
#![allow(dead_code)]
mod data;
mod doc;
mod figure;
mod replay;
