-- A table in memory with an index by a key that jumps about.
pragma temp_store = memory;
create table t (id integer primary key, k integer, name text);
with recursive n(i) as (select 0 union all select i + 1 from n where i < 499999)
  insert into t select i, i * 2654435761 % 4000037, 'name ' || (i * 40503 % 1000003) || ' of row ' || i from n;
create index by_k on t (k);
select count(*), sum(k), max(name) from t;
select count(*), sum(length(b.name)) from t a join t b on b.k = a.k where a.id % 7 = 0;
select k % 10, count(*), sum(id), min(name) from t group by k % 10 order by 1;
